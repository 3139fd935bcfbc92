// The bundler gives the text of a stylesheet to the module that imports it.
declare module "*.css" {
  const text: string;
  export default text;
}
