// The data of a run: the packed header, cells as typed arrays, and texts on demand.

export async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
const from64 = s => Uint8Array.from(atob(s), c => c.charCodeAt(0));
export const asBytes = x => typeof x == 'string' ? from64(x)
  : x instanceof DataView ? new Uint8Array(x.buffer, x.byteOffset, x.byteLength) : new Uint8Array(x);
export const asJson = async bytes => JSON.parse(new TextDecoder().decode(await inflate(bytes)));

// Unpacks what Python's `pack` made. `ask(b)` fetches a block of texts that it doesn't contain.
export async function unpack(packed, ask) {
  const head = await asJson(asBytes(packed.head));
  const array = async (name, Type) => packed[name] ? new Type((await inflate(asBytes(packed[name]))).buffer) : null;
  const run = {...head, S: head.steps.length, B: head.groups, long: await array('long', Uint16Array),
    same: await array('same', Uint8Array), funcs: {}, versions: []};
  for (const [i, name] of (head.functions || []).entries()) run.funcs[name] = await array('func' + i, Uint8Array);
  for (const [i, v] of head.versions.entries())
    run.versions.push(version(v, run, await array('state' + i, Uint8Array), await array('by' + i, Int32Array)));
  run.block = blocksOf(packed, ask);
  run.detail = async s => {
    const b = await run.block(Math.floor(s / head.per_block));
    return b && b[s % head.per_block];
  };
  return run;
}
function version(v, run, state, by) {  // where each stored group was sampled, and where it was replayed
  const uses = v.stored.map(() => []), born = new Int32Array(run.S * run.B).fill(-1);
  if (by) for (let s = 0; s < run.S; s++) for (let g = 0; g < run.B; g++) {
    const k = by[s * run.B + g];
    if (k >= 0) uses[k].push([s, g]);
  }
  v.stored.forEach((o, k) => { if (o.at) born[o.at[0] * run.B + o.at[1]] = k; });
  return {...v, state, by, uses, born};
}
function blocksOf(packed, ask) {       // blocks of texts, a few steps each: in the page, or fetched
  const blocks = new Map();
  return b => {
    if (!blocks.has(b)) {
      const here = packed.texts && packed.texts[b];
      const got = here ? asJson(asBytes(here)) : ask ? ask(b) : Promise.resolve(null);
      got.catch(() => blocks.delete(b));
      blocks.set(b, got);
      if (blocks.size > 64) blocks.delete(blocks.keys().next().value);
    }
    return blocks.get(b);
  };
}

// ---- looking things up

export function nearestOf(sorted, x) {   // the place of the value nearest to x
  let lo = 0, hi = sorted.length - 1;
  while (lo < hi) {
    const m = (lo + hi + 1) >> 1;
    if (sorted[m] <= x) lo = m;
    else hi = m - 1;
  }
  return lo < sorted.length - 1 && sorted[lo + 1] - x < x - sorted[lo] ? lo + 1 : lo;
}
export function largest(list, by, n) {   // the n with the largest values, in order
  const least = Float64Array.from(list, by).sort().at(-n) ?? -Infinity;
  return list.filter(i => by(i) >= least).sort((a, b) => by(b) - by(a)).slice(0, n);
}
