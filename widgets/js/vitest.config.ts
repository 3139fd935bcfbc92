// Tests see a document (jsdom) without layout: what needs a size is told one.
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { environment: "jsdom", setupFiles: ["test/support/setup.ts"], include: ["test/**/*.test.ts"] },
});
