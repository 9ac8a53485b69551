// Groups compared and stored: advantages (chapter 7), scores and the buffer (chapter 11).

export function random(seed) {         // numbers from 0 to 1, the same for the same seed (mulberry32)
  const draw = () => {
    const a = draw.state = draw.state + 0x6D2B79F5 | 0;
    let t = Math.imul(a ^ a >>> 15, 1 | a);
    t = t + Math.imul(t ^ t >>> 7, 61 | t) ^ t;
    return ((t ^ t >>> 14) >>> 0) / 2 ** 32;
  };
  draw.state = seed;                   // everything that its next numbers depend on
  return draw;
}

const TOLERANCE = 1e-6, EPS = 1e-4;    // reward units

// Whether the group is dead, the advantage of each answer, and the group's score.
export function compare(rewards) {
  const G = rewards.length, mean = rewards.reduce((a, b) => a + b) / G;
  const std = Math.sqrt(rewards.reduce((a, r) => a + (r - mean) ** 2, 0) / (G - 1));
  const dead = Math.max(...rewards) - Math.min(...rewards) <= TOLERANCE;
  const advantages = rewards.map(r => dead ? 0 : (r - mean) / (std + EPS));
  return {dead, advantages, score: advantages.reduce((a, A) => a + Math.abs(A), 0) * std};
}

export class Buffer {                  // the groups with the highest scores, drawn in proportion to them
  constructor(size, random) {
    this.size = size;
    this.random = random;
    this.groups = [];
    this.left = [];                    // ids of evicted groups
  }
  add(groups) {                        // of equal scores the newest stay
    this.groups.push(...groups);
    this.resize(this.size);
  }
  resize(size) {
    this.size = size;
    const worst = this.groups.map((g, i) => [g.score, i]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const leave = new Set(worst.slice(0, Math.max(0, worst.length - size)).map(([, i]) => i));
    this.left.push(...[...leave].map(i => this.groups[i].id));
    this.groups = this.groups.filter((_, i) => !leave.has(i));
  }
  draw(n) {                            // without replacement, unless `n` exceeds the number stored
    const drawn = [], left = [...this.groups], again = n > left.length;
    while (drawn.length < n && left.length) {
      const i = pick(left.map(g => g.score), this.random);
      drawn.push(left[i]);
      left[i].uses = (left[i].uses ?? 0) + 1;
      if (!again) left.splice(i, 1);
    }
    return drawn;
  }
}

export function pick(weights, random) {// a place, in proportion to its weight; all 0: each as likely
  const total = weights.reduce((a, b) => a + b, 0);
  if (!total) return Math.floor(random() * weights.length);
  let u = random() * total, i = 0;
  while (i < weights.length - 1 && (u -= weights[i]) >= 0) i++;
  return i;
}

export function shuffled(n, random) {
  const a = [...Array(n).keys()];
  for (let i = n - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [a[i], a[j]] = [a[j], a[i]];
  }
  return a;
}
