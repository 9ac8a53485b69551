"""A real vLLM on the CPU behind TRL's trainer and ours, and the loss once more in float64, on other roads.

`python tests/vllm_tiny.py nbs/results/vllm.csv` runs the table of cases and stores a row for each:
`test_vllm.py` holds the same rows to their bounds. Needs the environment that `test_vllm.py` describes.
"""
import copy, itertools, sys
from pathlib import Path
sys.path.append(str(Path(__file__).parents[1]/'nbs'/'scale'))
from on_cpu import vllm_on_cpu
vllm_on_cpu()   # before trl
import pandas as pd, torch
import trl.generation.vllm_generation as V
import trl_tiny as T
from trl_tiny import LIVE, DEAD, Scripted
from transformers import Qwen2ForCausalLM
from grpo_nb.parts.versions import versions
from grpo_nb.grpo_with_replay_buffer import GRPOWithReplayBufferConfig, GRPOWithReplayBufferTrainer
from grpo_nb.parts.datasets import make_problems
from grpo_nb.tiny_qwen import TINY_QWEN_DIR, load_model

torch.set_num_threads(1)
G,HEAT = 4,2.   # at a temperature of 2 the answers of a group differ
PLAN = [LIVE,[0.,2.,1.,0.], LIVE,DEAD, DEAD,LIVE, DEAD,DEAD]
LLM,engines = V.LLM,[]

def one_engine():
    "All trainers of this process share one engine, which takes half a minute to start."
    def llm(**kw):
        if not engines: engines.append(LLM(**kw|dict(max_num_seqs=64)))
        return engines[0]
    V.LLM = llm

def model_of(llm): return llm.llm_engine.model_executor.driver_worker.model_runner.model

def config(cls=GRPOWithReplayBufferConfig, **kw):
    if cls is GRPOWithReplayBufferConfig: kw = dict(replay_buffer_size=8) | kw
    return T.config(cls, **(dict(use_vllm=True, vllm_mode='colocate', vllm_gpu_memory_utilization=.1,
        vllm_max_model_length=160, per_device_train_batch_size=2*G, max_completion_length=24,
        learning_rate=5e-4, temperature=HEAT) | kw))

def trainer(rewards, cls=GRPOWithReplayBufferTrainer, dataset=None, args=None, **kw):
    t = cls(model=str(TINY_QWEN_DIR), reward_funcs=rewards, args=args or config(**kw),
        train_dataset=make_problems('sums', 24, 0) if dataset is None else dataset,
        processing_class=load_model('tiny')[1])
    for cb in list(t.callback_handler.callbacks):
        if type(cb).__name__ in ('PrinterCallback','ProgressCallback'): t.remove_callback(cb)
    return t

# -- float64, without padding, TRL's head or our hooks --------------------------------------------------
def plain64(model):
    "The model as transformers makes it, in float64."
    model = getattr(model, 'module', model)
    new = Qwen2ForCausalLM(copy.deepcopy(model.config)).double().eval()
    new.load_state_dict({k:whole(v) for k,v in model.state_dict().items()})
    return new

def whole(o):
    "A weight of which each process may hold a part."
    return (o.full_tensor() if hasattr(o, 'full_tensor') else o).detach().clone()

def logps64(model, prompt, answer):
    "Nats of each token of `answer`."
    ids = torch.tensor([[*prompt, *answer]])
    p = (model(input_ids=ids).logits[0,len(prompt)-1:-1]/HEAT).log_softmax(-1)
    return p.gather(1, torch.tensor(answer)[:,None])[:,0]

def correction64(diff, mode, low, high):
    "What an answer's loss is weighed by, from the log-probs of trainer minus sampler: per token, or one."
    w = (diff if mode.startswith('token') else diff.sum(0, keepdim=True)).exp()
    lo,hi = (0. if low is None else low),(float('inf') if high is None else high)
    return w.clamp(lo, hi) if mode.endswith('truncate') else torch.where((w<lo)|(w>hi), 0., w)

def answer_loss64(p, old, w, ref, A, o):
    "Loss of each token of one answer, from the papers' formulas."
    d = p-old
    r = d.exp() if o['level']=='token' else d.mean().exp()
    eps = o['epsilon']
    if o['loss']=='cispo': out = -r.detach().clamp(max=o['epsilon_high'])*A*p
    elif o['loss']=='sapo':
        tau = 1. if A>0 else 1.05
        out = -(tau*(r-1)).sigmoid()*4/tau*A
    elif o['loss']=='vespo':
        k,lam = (2.,3.) if A>=0 else (3.,2.)
        whole = (d.sum()+w.clamp(min=1e-8).log().sum()).clamp(-18.420680743952367, 20).detach()
        out = -(lam+k*whole-lam*whole.exp()).exp()*A*p
    else: out = -torch.minimum(r*A, r.clamp(1-eps, 1+(o['epsilon_high'] or eps))*A)
    if o['loss']!='vespo': out = out*w
    if o['beta']: out = out+o['beta']*r*((ref-p).exp()-(ref-p)-1)
    return out.expand(len(p)) if out.ndim==0 or len(out)==1 else out

def loss64(rows, o, width):
    "Loss of a batch of answers, each as its tokens' losses."
    n,total = len(rows),torch.cat(rows).sum()
    if o['loss'] in ('grpo','sapo'): return torch.stack([r.mean() for r in rows]).mean()
    if o['loss']=='dr_grpo': return total/(n*width)
    if o['loss']=='luspo': return torch.stack([r.sum() for r in rows]).mean()
    return total/sum(map(len, rows))   # bnpo; dapo, cispo and vespo where a step is one batch

def grads(loss, model):
    return torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, list(model.parameters()),
        retain_graph=True)])

# -- one case ---------------------------------------------------------------------------------------------
class Notes:
    "What vLLM said of every answer, and a copy of the policy that it sampled with."
    def __init__(self, t):
        self.of,self.calls,self.t,self.policy = {},[],t,None
        llm = t.vllm_generation.llm
        t.vllm_generation.llm = self
        self.llm = llm
    def __getattr__(self, k): return getattr(self.llm, k)
    def generate(self, prompts, **kw):
        outs = self.llm.generate(prompts, **kw)
        self.policy = plain64(self.t.model)
        self.calls.append(len(outs))
        for o in outs:
            a = o.outputs[0]
            said = torch.tensor([l[i].logprob for i,l in zip(a.token_ids, a.logprobs)])
            self.of.setdefault((tuple(o.prompt_token_ids), tuple(a.token_ids)), []).append((len(self.calls),
                said, self.policy))
        return outs
    def find(self, prompt, answer, said):
        "The sampling of this answer: vLLM may have given it twice, with other log-probs."
        return min(self.of[prompt, answer], key=lambda o: (o[1]-said).abs().max())

def rows_of(b):
    "Each row of a batch as its prompt and its answer."
    return [tuple(tuple(i[m.bool()].tolist()) for i,m in zip((b['prompt_ids'][j], b['completion_ids'][j]),
        (b['prompt_mask'][j], b['completion_mask'][j]))) for j in range(len(b['advantages']))]

def expected(t, notes, b, o, first):
    "The loss in float64, and what it was made of, of a batch of ours."
    now,parts,seen = plain64(t.model),[],[]
    for j,(q,a) in enumerate(rows_of(b)):
        at,said,then = notes.find(q, a, b['sampling_per_token_logps'][j,:len(a)])
        with torch.no_grad(): old,ref = logps64(then, q, a),logps64(first, q, a)
        p,s = logps64(now, q, a),said.double()
        w = correction64(old-s, o['mode'], o['low'], o['high'])
        whole = (old-s) if o['mode'].startswith('token') else (old-s).sum(0, keepdim=True)
        given = b['importance_sampling_ratio'][j,:len(w)].double()
        edge = ((whole.exp()[:,None]-torch.tensor([o['low'] or 0, o['high'] or 9e9])).abs()<1e-4).any(1)
        w = torch.where(edge, given, w)     # on the edge of a mask float32 decides
        seen.append(dict(replayed=bool(b['replayed'][j]), at=at, ratio=(p-old).exp().detach(),
            to_sampler=(p-s).exp().detach(), w=w, given=given, bitten=(w-whole.exp()).abs().max().item()>1e-5,
            said=(b['sampling_per_token_logps'][j,:len(a)]-said).abs().max().item(),
            mismatch=(old-s).exp(), advantage=b['advantages'][j].item()))
        parts.append(answer_loss64(p, old, w, ref, b['advantages'][j].double(), o))
    return loss64(parts, o, t.max_completion_length),now,seen

def run_case(mode='token_truncate', level='token', beta=0., loss='dapo', bounds=None, steps=4, **kw):
    "Train with groups of a known fate; every loss beside its twin. A row of the table, and what was seen."
    low,high = bounds or ((.997,1.003) if mode.startswith('token') else (.95,1.05))
    high_clip = 5. if loss=='cispo' else None
    o = dict(mode=mode, level=level, beta=beta, loss=loss, low=low, high=high, epsilon=.2,
        epsilon_high=high_clip)
    t = trainer(Scripted(PLAN, G), max_steps=steps, loss_type=loss, importance_sampling_level=level,
        beta=beta, epsilon_high=high_clip, vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=high, vllm_importance_sampling_clip_min=low, **kw)
    notes,first,compute,errors,seen = Notes(t),plain64(t.model),t._compute_loss,[],[]
    got = T.spy(t)
    def both(model, b):
        b = dict(b)
        ours = compute(model, b)
        theirs,now,rows = expected(t, notes, b, o, first)
        g,h = grads(ours, t.model),grads(theirs, now)
        errors.append((abs(ours.item()-theirs.item())/max(1., abs(theirs.item())),
            ((g-h).norm()/h.norm().clamp(min=.01)).item()))
        seen.append(rows)
        return ours
    t._compute_loss = both
    t.train()
    old = [r for rows in seen for r in rows if r['replayed']]
    ratio,sampled = (torch.cat([r[k] for r in old]) for k in ('ratio','to_sampler'))
    mismatch = torch.cat([r['mismatch'] for rows in seen for r in rows])
    row = dict(mode=mode, level=level, beta=beta, loss=loss, steps=steps,
        loss_error=max(e for e,_ in errors), gradient_error=max(e for _,e in errors),
        replaced=len(old)//G, ratio_low=ratio.min().item(), ratio_high=ratio.max().item(),
        to_sampler_low=sampled.min().item(), to_sampler_high=sampled.max().item(),
        mismatch_low=mismatch.min().item(), mismatch_high=mismatch.max().item(),
        corrected=sum(r['bitten'] for rows in seen for r in rows), rows=sum(map(len, seen)))
    return row,seen,got,notes,t

MODES = ('token_truncate','token_mask','sequence_truncate','sequence_mask')
OTHER = ('grpo','bnpo','cispo','sapo','dr_grpo','luspo','grpo','vespo')
CASES = [(m, l, b, k) for i,(m, l, b) in enumerate(itertools.product(MODES, ('token','sequence'), (0., .05)))
    for k in ('dapo', 'vespo' if (m, l, b)==('token_mask','token',0.) else OTHER[i%7])]

def main(out):
    one_engine()
    rows = []
    for case in CASES:
        row = run_case(*case)[0]
        print(row, flush=True)
        rows.append(row|versions())
    pd.DataFrame(rows).to_csv(out, index=False)

if __name__=='__main__': main(sys.argv[1])
