// Tests see a document (jsdom) without layout: what needs a size is told one.
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: { environment: "jsdom", include: ["test/**/*.test.ts"] },
});
