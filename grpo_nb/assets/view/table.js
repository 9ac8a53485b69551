// The one table of colors, cells and columns. Pages import it; Python reads the text after `=` as JSON.
export const TABLE =
{
  "colours": {
    "living": "#0072B2",
    "right": "#009E73",
    "wrong": "#D55E00",
    "alike": "#A77CB0",
    "stored": "#E69F00",
    "stored_once": "#F4DDA0",
    "reward": "#009E73",
    "held_out": "#CC79A7",
    "high": "#0072B2",
    "low": "#D55E00",
    "curve": "#0072B2",
    "grey": "#8C8C8C"
  },
  "cells": [
    {"key": "none", "name": "no group"},
    {"key": "living", "name": "living", "colour": "living"},
    {"key": "right", "name": "dead, all right, left", "colour": "right", "dead": "right"},
    {"key": "wrong", "name": "dead, all wrong, left", "colour": "wrong", "dead": "wrong"},
    {"key": "alike", "name": "dead, all alike, left", "colour": "alike", "dead": "alike"},
    {"key": "right_replaced", "name": "dead, all right, replaced", "colour": "stored", "mark": "right", "dead": "right"},
    {"key": "wrong_replaced", "name": "dead, all wrong, replaced", "colour": "stored", "mark": "wrong", "dead": "wrong"},
    {"key": "alike_replaced", "name": "dead, all alike, replaced", "colour": "stored", "mark": "alike", "dead": "alike"},
    {"key": "stored", "name": "stored, trained beside the fresh ones", "colour": "stored"}
  ],
  "why": {
    "all-right": "all right",
    "all-wrong": "all wrong",
    "equal": "all alike",
    "float-noise": "differ by rounding",
    "within-tolerance": "within the tolerance",
    "unscored": "not scored"
  },
  "group": ["group", "step", "prompt", "completions", "rewards", "rewards_by_func", "advantages_before",
    "advantages", "n_tokens", "truncated", "dead_reason", "outcome", "score", "id", "ratio_hist", "clip_frac",
    "grad_norm", "tokens", "logps", "ratios", "terms"]
}
;
