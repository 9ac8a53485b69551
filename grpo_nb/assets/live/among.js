// The reader's run among recorded ones: sums with the usual knobs, many seeds each with replay, without, and without
// but with the shorter step. `recorded.json`, by js/record_runs.mjs: right answers, `of` how many, at each evaluation.

export const NAMES = {replay: 'with replay', plain: 'plain GRPO', scaled: 'plain GRPO, shorter step (× √ share alive)'};

// 95 % quantiles of Student's t with 1 to 19 degrees of freedom
const T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
  2.120, 2.110, 2.101, 2.093];
const mean = xs => xs.reduce((a, b) => a + b, 0) / xs.length;
const signed = x => (x < 0 ? '−' : '+') + Math.abs(x).toFixed(1);

export const lines = (recorded, shown, every) => shown.flatMap(kind =>
  recorded[kind].map(run => ({kind: `past ${kind}`, points: run.map((n, i) => [i * every, n / recorded.of])})));

function difference(a, b) {            // of right answers in 100, paired by seed, with its 95 % interval
  const n = Math.min(a.length, b.length), d = Array.from({length: n}, (_, i) => a[i] - b[i]), m = mean(d);
  const std = Math.sqrt(d.reduce((s, x) => s + (x - m) ** 2, 0) / (n - 1));
  return `${signed(m)} ± ${(T[n - 2] * std / Math.sqrt(n)).toFixed(1)}`;
}

// What the recorded runs say, and how many of them the reader's whole run `own` (shares) is above.
export function among(recorded, own) {
  const [replay, plain, scaled] = Object.keys(NAMES).map(k => recorded[k].map(run => 100 * mean(run) / recorded.of));
  const n = Math.min(replay.length, plain.length, scaled.length);
  const said = [`Right answers in 100, averaged over a run, mean of ${n} seeds: replay − plain `
    + `${difference(replay, plain)}, shorter step − plain ${difference(scaled, plain)}.`];
  if (own) {
    const above = runs => `${runs.filter(x => x < 100 * mean(own)).length} of ${runs.length}`;
    said.push(`Yours has ${(100 * mean(own)).toFixed(1)}: more than ${above(replay)} with replay, and ${above(plain)} without.`);
  }
  return said.join(' ');
}
