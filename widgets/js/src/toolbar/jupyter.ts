// The members of JupyterLab's objects that the toolbar's field uses. JupyterLab and Notebook 7 have them since version 4;
// their packages are too heavy to build against.

export interface Signal<T> {
  connect(slot: (sender: unknown, args: T) => void): void;
  disconnect(slot: (sender: unknown, args: T) => void): void;
}

export interface Message {
  channel: string;
  header: Record<string, string>;
  parent_header: object;
  metadata: object;
  content: Record<string, unknown>;
  buffers: [];
}

export interface Kernel {
  readonly status: string;
  readonly clientId: string;
  readonly username: string;
  readonly info: Promise<{ language_info: { name: string } }>;
  requestCommInfo(content: { target_name: string }): Promise<{ content: { comms?: object } }>;
  requestExecute(content: object, dispose?: boolean, metadata?: object): unknown;
  sendShellMessage(message: Message, expects_reply: boolean, disposes: boolean): unknown;
}

export interface SessionContext {
  readonly session: { readonly kernel: Kernel | null } | null;
  readonly kernelChanged: Signal<unknown>;
  readonly statusChanged: Signal<string>;
  readonly iopubMessage: Signal<Message>;
}

export interface NotebookModel {
  readonly isDisposed: boolean;
  readonly metadataChanged: Signal<unknown>;
  readonly sharedModel: { insertCell(index: number, cell: object): unknown };
  getMetadata(key: string): unknown;
  setMetadata(key: string, value: unknown): void;
}

export interface Notebook {
  activeCellIndex: number;
  readonly widgets: readonly { model: { type: string; sharedModel: { getSource(): string } } }[];
  deselectAll(): void;
}

export interface Widget {
  readonly disposed: Signal<unknown>;
  readonly isDisposed: boolean;
  setHidden(is_hidden: boolean): void;
  dispose(): void;
}

export interface NotebookPanel {
  readonly content: Notebook;
  readonly sessionContext: SessionContext;
  readonly toolbar: {
    insertAfter(at: string, name: string, widget: Widget): boolean;
    insertItem(index: number, name: string, widget: Widget): boolean;
  };
  readonly context: { readonly model: NotebookModel };
  readonly revealed: Promise<void>;
}

export interface Button {
  accept: boolean;
}

/** The modules that the page shares with extensions. */
export interface Shared {
  "@lumino/widgets": { Widget: new (options: { node: HTMLElement }) => Widget };
  "@jupyterlab/notebook": {
    NotebookActions: { run(notebook: Notebook, session: SessionContext): Promise<boolean> };
  };
  "@jupyterlab/apputils": {
    showDialog(options: {
      title: string;
      body: string;
      buttons: Button[];
      defaultButton: number;
    }): Promise<{ button: Button }>;
    Dialog: {
      cancelButton(): Button;
      warnButton(options: { label: string }): Button;
    };
  };
}

export interface App {
  docRegistry: {
    addWidgetExtension(kind: "Notebook", extension: { createNew(panel: NotebookPanel): Widget }): void;
  };
}
