"""Runs whose numbers somebody published, made again on the spot: what was reported at a few steps, straight
lines between, and a few per cent of noise; a column that was not reported gets a plain course. The label is
what their owner, or a maintainer, said was wrong; None for a run that was said to be sound. Only figures are
taken over, each from the page named beside it."""
import json
import numpy as np

def along(points, n, rng, noise=.04, low=-np.inf, high=np.inf):
    "Values of `n` rows through `points`: {share of the way: value}"
    x = np.interp(np.linspace(0, 1, n), list(points), list(points.values()))
    return np.clip(x*(1+noise*rng.standard_normal(n)), low, high)

def trl(n, seed=0, exact=(), **cols):
    "A function that writes a trainer_state.json with these columns into a folder"
    def make(folder):
        rng = np.random.default_rng(seed)
        rows = [dict(step=i+1) for i in range(n)]
        for k,v in cols.items():
            k = k.replace('__', '/')
            high = 1. if k.endswith(('ratio','zero_std')) else np.inf
            points = v if isinstance(v, dict) else {0.:v, 1.:v}
            noise = 0. if k in exact else .04
            x = v if isinstance(v, np.ndarray) else along(points, n, rng, noise, high=high)
            for o,y in zip(rows, x): o[k] = float(y)
        folder.mkdir(parents=True)
        (folder/'trainer_state.json').write_text(json.dumps(dict(global_step=n, log_history=rows)))
        return folder
    return make

def mostly_zero(n, early, late, usual, seed=0):
    "A gradient norm that is exactly 0 in a share of the rows that goes from `early` to `late`"
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n)<np.linspace(early, late, n), 0., usual*(1+.2*rng.standard_normal(n)))

def spiked(n, usual, spikes, times, seed=0):
    "A gradient norm with single spikes, and 29 % of rows at exactly 0"
    rng = np.random.default_rng(seed)
    g = np.where(rng.random(n)<.29, 0., usual*(1+.2*rng.standard_normal(n)))
    g[rng.choice(np.arange(n//10, n), spikes, replace=False)] = usual*np.linspace(12, times, spikes)
    return g

_HUB = 'a model card on the Hugging Face hub: '
_SWIFT = 'https://github.com/modelscope/ms-swift/issues/'
_R1 = 'https://github.com/huggingface/open-r1/issues/'
PUBLISHED = {   # name: (label, what writes it, where the figures stand)
    'every answer at the limit': ('truncation', trl(60, exact=('reward',), completions__clipped_ratio=1.,
        completions__mean_length=4096., reward=0., reward_std=0., frac_reward_zero_std=1., grad_norm=0.,
        loss=0., entropy={0.:.82, 1.:.55}, learning_rate=1e-6), _SWIFT+'9261'),
    'limit of 256 tokens': ('truncation', trl(40, completions__clipped_ratio=1., loss=0., grad_norm=0.,
        completions__mean_length=256., reward=0., reward_std=0., frac_reward_zero_std=1.),
        'https://github.com/greyhaven-ai/autocontext/pull/1067'),
    'three quarters cut off': ('truncation', trl(40, completions__clipped_ratio={0.:.75, 1.:.875},
        completions__mean_length=2362., reward={0.:.656, 1.:.78}, reward_std={0.:.138, 1.:.036},
        frac_reward_zero_std={0.:.625, 1.:.875}, grad_norm={0.:.0387, 1.:.0303}, learning_rate=1e-8,
        kl=4e-5), _SWIFT+'5890'),
    'limit of 8192 tokens': ('truncation', trl(100, completions__clipped_ratio=.996, grad_norm=.1,
        completions__mean_length=8192., reward=.2, reward_std=.1),
        _HUB+'DGurgurov/OpenThinker3-7B-SFT-GRPO-DE'),
    'five rewards, no spread': ('dead groups', trl(30, exact=('reward','rewards/json_format_reward/mean'),
        loss=0., grad_norm=0., completions__mean_length=702., completions__clipped_ratio=0., reward=3.,
        reward_std=0., frac_reward_zero_std=1., rewards__json_format_reward__mean=2.,
        rewards__length_penalty_reward__mean=0., learning_rate=1.7e-6),
        'https://github.com/huggingface/trl/issues/3857'),
    'living groups, no gradient': ('gradients', trl(30, loss=0., grad_norm=0., reward=.344, reward_std=.44,
        frac_reward_zero_std=0., completions__mean_length=357.5, completions__clipped_ratio=0., kl=0.,
        learning_rate=2.6e-7), _SWIFT+'5571'),
    '88 % of the steps without gradient': ('gradients', trl(500, reward=.5, reward_std=.05,
        grad_norm=mostly_zero(500, .4, 1., 13.4)), _HUB+'juwon1105/RLVR-qwen3-1.7B-hotpot5000'),
    'spikes to 24 times': ('gradients', trl(500, grad_norm=spiked(500, .5, 7, 24), reward_std=.2,
        reward={0.:.3, .6:.5, 1.:.5}), _HUB+'juwon1105/RLVR-qwen3-1.7B-bigmathdigits5000'),
    'accuracy gives way to format': ('reward hacked', trl(60, **{'rewards/accuracy_reward':
        {0.:.16, .02:.118, .04:.064, .3:0., 1.:0.}, 'rewards/format_reward': {0.:.476, .02:.554,
        .04:.857, .3:1., 1.:1.}}, reward={0.:.71, .02:.694, .04:.887, .3:1.15, 1.:1.15},
        reward_std={0.:.53, .04:.34, 1.:.1},
        completion_length={0.:387., .04:190., 1.:120.}, kl={0.:.0002, .02:.004, 1.:.02}, grad_norm=.85),
        _R1+'255'),
    'gradient nan': ('gradients', trl(40, reward={0.:.5, .6:.6, .61:0., 1.:0.},
        reward_std={0.:.3, .6:.2, .61:0., 1.:0.}, grad_norm=np.where(np.arange(40)<25, .2, np.nan),
        loss=np.where(np.arange(40)<25, .01, 0.)),
        _SWIFT+'3136'),
    'loss 0, said to be sound': (None, trl(60, loss=0., grad_norm={0.:.087, 1.:.106},
        learning_rate={0.:6.9e-6, 1.:6.1e-6}, completion_length=235., reward={0.:1.717, 1.:1.97},
        reward_std={0.:.57, .5:.63, 1.:.79}, kl=5.4e-4), 'https://github.com/huggingface/trl/issues/3452'),
    '80 steps, said to be sound': (None, trl(80, reward={0.:.5, 1.:.6}, reward_std=.3, grad_norm=.11,
        completions__clipped_ratio=.02), _HUB+'logan7000/grpo-qwen3-1p7b-math345-best'),
}
