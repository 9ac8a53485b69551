// Text and tokens: reads the shipped weights and tokenizer, and judges answers.

export function safetensors(buffer) {  // name -> {shape, x}
  const n = Number(new DataView(buffer).getBigUint64(0, true));
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, n))), weights = {};
  delete head.__metadata__;
  for (const [name, {shape, data_offsets: [from, to]}] of Object.entries(head))
    weights[name] = {shape, x: new Float32Array(buffer.slice(8 + n + from, 8 + n + to))};
  return weights;
}

export class Tokenizer {               // of tokenizer.json: a token for each ASCII letter, and some phrases
  constructor({model, added_tokens: phrases}) {
    const plain = {'\u0120': ' ', '\u010A': '\n'};   // as byte-level vocabularies write them
    const letters = Object.entries(model.vocab).map(([t, id]) => [plain[t] ?? t, id]);
    const known = [...letters.filter(([t]) => t <= '\x7f'), ...phrases.map(o => [o.content, o.id])];
    this.known = known.sort((a, b) => b[0].length - a[0].length);
    this.text = Object.fromEntries(this.known.map(([t, id]) => [id, t]));
    this.eos = phrases.find(o => o.content == '<|im_end|>').id;
    this.pad = phrases.find(o => o.content == '<|endoftext|>').id;
    this.special = new Set(phrases.filter(o => o.special).map(o => o.id));
  }
  encode(s) {                          // the longest known piece first
    const ids = [];
    for (let at = 0; at < s.length;) {
      const [piece, id] = this.known.find(([t]) => s.startsWith(t, at)) ?? [s[at], this.pad];
      ids.push(id);
      at += piece.length;
    }
    return ids;
  }
  decode(ids) {
    return ids.filter(id => !this.special.has(id)).map(id => this.text[id] ?? '\uFFFD').join('');
  }
}

// The final answer: the text in the last <answer>…</answer>; null if there is none.
export function said(text) {
  const found = [...text.matchAll(/<answer>((?:(?!<answer>)[^])*?)<\/answer>/g)].pop();
  return found ? found[1].trim() : null;
}
const NUMBER = /^[-+]?\d+(\.\d*)?(e[-+]?\d+)?$/i;

export function right(text, answer) {  // 1 for the same number or word, else 0
  const s = said(text) ?? '';
  if (NUMBER.test(s) && NUMBER.test(answer)) return Number(s) == Number(answer) ? 1 : 0;
  return s && s.toLowerCase() == answer.toLowerCase() ? 1 : 0;
}

const INSIDE = '(?:(?!</?think>|</?answer>)[^])*';
const FORM = new RegExp(`^\\s*<think>${INSIDE}</think>\\s*<answer>${INSIDE}</answer>\\s*$`);

// What a try can be paid for: 0 to 1, of its text, the right answer, and its tokens of at most T.
export const REWARDS = {
  right: (text, answer) => right(text, answer),
  tags: text => FORM.test(text) ? 1 : 0,
  length: (text, answer, n, T) => n / T,
  short: (text, answer, n, T) => right(text, answer) * (1 - n / T),
};
