// A prebuilt extension of JupyterLab and Notebook 7: puts a field with the ranks into each notebook's toolbar.
//
// The page loads this file, calls `init` with the modules that it shares, and `get` for the extension
// (JupyterLab's bootstrap.js and index.out.js). Webpack would write the same two functions around its own loader.

import { RankField, type Host, type Wish } from "./field";
import type { App, NotebookPanel, Shared, Widget } from "./jupyter";
import { KernelLink, carry_wish } from "./kernel_link";
import css from "./toolbar.css";

export const NAME = "phalanx-toolbar"; // as in ../../../labextension/package.json
const KEY = "phalanx"; // of the notebook's metadata
const ITEM = "phalanx-ranks";
const BEHIND = 10; // where the cell type usually is

interface Offer {
  get(): Promise<() => unknown> | (() => unknown);
  loaded?: number | boolean;
}
export type Scope = Record<string, Record<string, Offer>>;
let scope: Scope = {};

/** Return a module that the page shares; of several versions the loaded one, else the newest. */
async function shared<K extends keyof Shared>(name: K): Promise<Shared[K]> {
  const versions = Object.entries(scope[name] ?? {}).sort(
    ([a, one], [b, other]) =>
      Number(Boolean(other.loaded)) - Number(Boolean(one.loaded)) || b.localeCompare(a, "en", { numeric: true }),
  );
  const newest = versions[0]?.[1];
  if (!newest) throw new Error(`${NAME}: this page does not share ${name}`);
  return (await newest.get())() as Shared[K];
}

async function plugin(): Promise<object> {
  const { Widget } = await shared("@lumino/widgets");
  const { NotebookActions } = await shared("@jupyterlab/notebook");
  const { Dialog, showDialog } = await shared("@jupyterlab/apputils");

  function host_of(panel: NotebookPanel, link: KernelLink): Host {
    const { content, context, sessionContext } = panel;
    const wish = (): Wish => (context.model.getMetadata(KEY) ?? {}) as Wish;
    return {
      wish,
      keep: (more) => context.model.setMetadata(KEY, { ...wish(), ...more }),
      is_busy: () => sessionContext.session?.kernel?.status === "busy",
      set_auto: (on) => link.set_auto(on),
      // A cell that is seen says what was done, can be stopped and undone, and shows errors where they are looked for.
      run: async (code) => {
        let index = content.widgets.findIndex(
          ({ model }) => model.type === "code" && model.sharedModel.getSource().trim() === code,
        );
        if (index < 0) {
          index = Math.min(content.activeCellIndex + 1, content.widgets.length);
          context.model.sharedModel.insertCell(index, {
            cell_type: "code",
            source: code,
            metadata: { trusted: true },
          });
        }
        content.activeCellIndex = index;
        content.deselectAll();
        await NotebookActions.run(content, sessionContext);
      },
      confirm: async (title, body, label) => {
        const buttons = [Dialog.cancelButton(), Dialog.warnButton({ label })];
        return (await showDialog({ title, body, buttons, defaultButton: 0 })).button.accept;
      },
    };
  }

  function createNew(panel: NotebookPanel): Widget {
    const { model } = panel.context;
    const link = new KernelLink(panel.sessionContext, (frame) => field.take(frame));
    const host = host_of(panel, link);
    const field = new RankField(host);
    const widget = new Widget({ node: field.node });
    const is_wished = (): boolean => !model.isDisposed && Boolean(host.wish().autodistributed);
    const redraw = (): void => field.draw();
    const follow = (): void => {
      link.begin();
      const { kernel } = link;
      if (!kernel) return;
      carry_wish(kernel, is_wished);
      kernel.info.then(
        (info) => widget.setHidden(info.language_info.name !== "python"),
        () => undefined, // the kernel has gone meanwhile
      );
    };
    panel.sessionContext.kernelChanged.connect(follow);
    follow();
    model.metadataChanged.connect(redraw);
    // Notebook 7 has no items before; later ones would push the field to the end.
    void panel.revealed.then(() => {
      const { toolbar } = panel;
      if (widget.isDisposed || toolbar.insertAfter("cellType", ITEM, widget)) return;
      toolbar.insertItem(BEHIND, ITEM, widget);
    });
    widget.disposed.connect(() => {
      panel.sessionContext.kernelChanged.disconnect(follow);
      model.metadataChanged.disconnect(redraw);
      link.close();
      field.close();
    });
    return widget;
  }

  return {
    id: `${NAME}:ranks`,
    description: "The ranks of a notebook's kernel, in its toolbar.",
    autoStart: true,
    activate: (app: App) => {
      document.head.appendChild(document.createElement("style")).textContent = css;
      app.docRegistry.addWidgetExtension("Notebook", { createNew });
    },
  };
}

const container = {
  init: (offered: Scope): void => {
    scope = offered;
  },
  get: async (): Promise<() => object> => {
    const made = await plugin();
    return () => ({ __esModule: true, default: made });
  },
};
const page = window as unknown as { _JUPYTERLAB?: Record<string, unknown> };
(page._JUPYTERLAB ??= {})[NAME] = container;
