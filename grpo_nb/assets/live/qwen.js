// The tiny Qwen of chapter 3 and the loss of chapter 10, in jax-js: log-probs with a gradient, and sampling.
// jax-js counts references: a function consumes the arrays it is given, and `.ref` makes one more reference.

import {lax, nn, numpy as np} from './jax/index.js';

export const V = 268;                  // tokens
export const H = 96;                   // width of a token's hidden state
const [Q, D, LAYERS] = [3, 32, 2];     // query heads, width of a head, layers
const NEVER = -1e9;                    // hides a key from a query
const FREQUENCIES = Array.from({length: D}, (_, i) => 1e4 ** (-2 * (i % (D / 2)) / D));

// ---- pieces

const norm = (x, w) => x.ref.div(np.sqrt(np.mean(np.square(x), -1, {keepdims: true}).add(1e-6))).mul(w);
const linear = (x, w) => np.matmul(x, w.transpose());
const part = (x, axis, from, to) => x.slice(...Array(axis).fill([]), [from, to]);
const shaped = (arrays, shape) => arrays.map(x => x.reshape(shape));

const TURNS = new Map();               // cos and sin of a position, computed once

export function turns(positions) {     // cos and sin (n, D) of rotary positions
  const out = [new Float32Array(positions.length * D), new Float32Array(positions.length * D)];
  positions.forEach((p, i) => {
    if (!TURNS.has(p)) TURNS.set(p, [Math.cos, Math.sin].map(f => FREQUENCIES.map(w => f(p * w))));
    TURNS.get(p).forEach((row, j) => out[j].set(row, i * D));
  });
  return out;
}

// Swaps the halves of a head and negates the second, as a matrix: a product is computed once, while a slice
// would be taken again by everything that uses it.
const SWAP = Array.from({length: D}, (_, i) => Array.from({length: D}, (_, j) =>
  i == (j + D / 2) % D ? (j < D / 2 ? -1 : 1) : 0));

function turn(x, [cos, sin]) {
  return x.ref.mul(cos).add(np.matmul(x, np.array(SWAP)).mul(sin));
}

// Runs embedded tokens (n, H) through the layers; `attend(layer, q, k, v)` is given (n, H), (n, D), (n, D).
function blocks(W, x, attend) {
  for (let l = 0; l < LAYERS; l++) {
    const w = name => W[`model.layers.${l}.${name}`].ref;
    const project = (name, y) => {
      const at = `self_attn.${name}_proj`;
      return linear(y, w(`${at}.weight`)).add(w(`${at}.bias`));
    };
    const y = norm(x.ref, w('input_layernorm.weight'));
    const seen = attend(l, project('q', y.ref).mul(D ** -.5), project('k', y.ref), project('v', y));
    x = x.add(linear(seen, w('self_attn.o_proj.weight')));
    const h = norm(x.ref, w('post_attention_layernorm.weight'));
    const gate = nn.silu(linear(h.ref, w('mlp.gate_proj.weight'))).mul(linear(h, w('mlp.up_proj.weight')));
    x = x.add(linear(gate, w('mlp.down_proj.weight')));
  }
  return x;
}

const predict = (W, x) =>              // states (n, H): log-probs of the next token (n, V)
  nn.logSoftmax(linear(norm(x, W['model.norm.weight'].ref), W['model.embed_tokens.weight'].ref), -1);

const past = n => np.where(np.tril(np.ones([n, n])).equal(0), NEVER, 0);

// Prompts (b, P) among themselves: what they attend to (b*P, H), and their turned keys and values (b, P, D).
function readPrompts(q, k, v, hide, [cos, sin]) {
  const [b, P] = hide.shape;
  q = turn(q.reshape([b, P, Q, D]), shaped([cos.ref, sin.ref], [1, P, 1, D]));
  k = turn(k.reshape([b, P, D]), shaped([cos, sin], [1, P, D]));
  v = v.reshape([b, P, D]);
  const see = past(P).reshape([1, P, 1, P]).add(hide.reshape([b, 1, 1, P]));
  const z = np.matmul(q.reshape([b, P * Q, D]), k.ref.transpose([0, 2, 1])).reshape([b, P, Q, P]);
  const seen = np.matmul(nn.softmax(z.add(see), -1).reshape([b, P * Q, P]), v.ref);
  return [seen.reshape([b * P, H]), k, v];
}

// ---- with a gradient

// Short answers of a group share a lane of T tokens, which keeps padding low: `answer` (N, T) says
// which answer a token belongs to, `first` (N, T) is 1 where an answer begins, `group` (N, b) is the lane's
// group, one-hot. An answer attends to its prompt and itself. `x` (b*P + N*T, H) are the embedded tokens, prompts
// first, `chosen` (N*T, V) the lanes' tokens one-hot. Returns log-probs (N, T).
export function logProbs(W, x, chosen, {hide, group, answer, first, promptTurns, laneTurns}) {
  const [b, P] = hide.shape, [N, T] = answer.shape, n = b * P, all = n + N * T;
  const perLane = x => np.matmul(group.ref, x.reshape([b, x.size / b]));      // of each lane's group
  const same = answer.ref.reshape([N, T, 1]).equal(answer.reshape([N, 1, T]));
  const own = np.where(same, past(T).reshape([1, T, T]), NEVER);
  const prompt = perLane(hide.ref).reshape([N, 1, P]).add(np.zeros([1, T, 1]));
  const see = np.concatenate([prompt, own], 2).reshape([N, T, 1, P + T]);
  const [cos, sin] = laneTurns;

  x = blocks(W, x, (l, q, k, v) => {
    const asked = [q, k, v].map(o => o.ref.slice([0, n])), lanes = [q, k, v].map(o => o.slice([n, all]));
    const [seen, kp, vp] = readPrompts(...asked, hide.ref, promptTurns.map(o => o.ref));
    const ql = turn(lanes[0].reshape([N, T, Q, D]), shaped([cos.ref, sin.ref], [N, T, 1, D]));
    const kl = turn(lanes[1].reshape([N, T, D]), [cos.ref, sin.ref]), vl = lanes[2].reshape([N, T, D]);
    const keys = np.concatenate([perLane(kp).reshape([N, P, D]), kl], 1);
    const values = np.concatenate([perLane(vp).reshape([N, P, D]), vl], 1);
    const z = np.matmul(ql.reshape([N, T * Q, D]), keys.transpose([0, 2, 1])).reshape([N, T, Q, P + T]);
    const a = nn.softmax(z.add(see.ref), -1).reshape([N, T * Q, P + T]);
    return np.concatenate([seen, np.matmul(a, values).reshape([N * T, H])], 0);
  });

  const last = perLane(part(x.ref.slice([0, n]).reshape([b, P, H]), 1, P - 1, P)).reshape([N, 1, H]);
  const lane = x.slice([n, all]).reshape([N, T, H]), f = first.reshape([N, T, 1]);
  const before = np.concatenate([last.ref, part(lane, 1, 0, T - 1)], 1);
  const from = before.mul(np.array(1).sub(f.ref)).add(last.mul(f));   // every first token follows the prompt
  return np.sum(predict(W, from.reshape([N * T, H])).mul(chosen), -1).reshape([N, T]);
}

// The clipped objective of chapter 10. With `cap` above 0 every token's ratio is a weight of at most `cap`
// instead, without a clip: the loss for stored groups trained beside fresh ones.
export function loss(W, x, chosen, layout, {mask, A, old, items}, cap) {
  const logps = logProbs(W, x, chosen, layout);
  return np.sum(objective(logps, old, A, cap).mul(mask)).neg().div(items);
}
export const objective = (logps, old, A, cap) => cap ? weighed(logps, old, A, cap) : clipped(logps, old, A);
function clipped(logps, old, A) {
  const ratio = np.exp(logps.sub(old));
  return np.minimum(ratio.ref.mul(A.ref), np.clip(ratio, .8, 1.2).mul(A));
}
function weighed(logps, old, A, cap) {
  const now = lax.stopGradient(logps.ref), weight = np.minimum(np.exp(now.ref.sub(old)), cap);
  return np.exp(logps.sub(now)).mul(weight).mul(A);   // 1 times the weight, with the gradient of the log-prob
}

// ---- without a gradient

// Log-probs of each answer's first token (b*G, V), and caches of P+T places for its G answers.
export function prefill(W, ids, hide, cos, sin, G, T) {
  const [b, P] = ids.shape, cache = [];
  const room = x => np.concatenate([x, np.zeros([b, T, D])], 1).reshape([b, 1, (P + T) * D])
    .mul(np.ones([1, G, 1])).reshape([b * G, P + T, D]);
  const x = blocks(W, np.take(W['model.embed_tokens.weight'].ref, ids.reshape([b * P]), 0), (l, q, k, v) => {
    const [seen, kp, vp] = readPrompts(q, k, v, hide.ref, [cos.ref, sin.ref]);
    cache.push(room(kp), room(vp));
    return seen;
  });
  const last = part(x.reshape([b, P, H]), 1, P - 1, P).mul(np.ones([1, G, 1])).reshape([b * G, H]);
  return [predict(W, last), cache];
}

// One more token in each of n rows, at place `at` (S,) one-hot; hide (n, S); cos and sin (D,) of that place.
export function decode(W, ids, cache, at, hide, cos, sin) {
  const n = ids.shape[0], S = at.shape[0], out = [];
  const x = blocks(W, np.take(W['model.embed_tokens.weight'].ref, ids, 0), (l, q, k, v) => {
    const put = (old, x) => np.where(at.ref.reshape([1, S, 1]).equal(1), x.reshape([n, 1, D]), old);
    k = put(cache[2 * l], turn(k, [cos.ref, sin.ref]));
    v = put(cache[2 * l + 1], v);
    out.push(k.ref, v.ref);
    const z = np.matmul(turn(q.reshape([n, Q, D]), [cos.ref, sin.ref]), k.transpose([0, 2, 1]));
    return np.matmul(nn.softmax(z.add(hide.ref.reshape([n, 1, S])), -1), v).reshape([n, H]);
  });
  return [predict(W, x), out];
}
