// What the live page takes of jax-js, which comes from npm when the page is built.
export const defaultDevice: any, init: any, jit: any, lax: any, nn: any, numpy: any, valueAndGrad: any;
