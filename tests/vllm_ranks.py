"What each process does, for `test_vllm.py`: a folder, then 'ddp', 'fsdp2' or 'alone'; alone by `python` too."
import os, sys
from pathlib import Path
import vllm_tiny as X
import torch
from on_cpu import fsdp2_on_cpu
from grpo_nb.tasks import completion_text

def uneven(completions, prompts, **kw):
    "Digits written; for one prompt in three the same for every answer."
    def text(p): return p if isinstance(p, str) else p[-1]['content']
    return [1. if sum(map(ord, text(p)))%3==0 else float(sum(ch.isdigit() for ch in completion_text(c)))
        for p,c in zip(prompts, completions)]

def run(folder, resume=None, steps=6, **kw):
    "A run of six steps with a checkpoint in the middle, or its second half; what it was."
    opts = dict(per_device_train_batch_size=4*X.G, save_strategy='steps', save_steps=3) | kw
    t = X.trainer(uneven, output_dir=str(folder), max_steps=steps, lr_scheduler_type='constant', **opts)
    if resume: torch.manual_seed(99)
    seen,notes = X.T.spy(t),X.Notes(t)
    t.train(resume_from_checkpoint=resume)
    model = t.accelerator.unwrap_model(t.model)
    log = [{k:v for k,v in o.items() if 'time' not in k and 'runtime' not in k and 'per_second' not in k}
        for o in t.state.log_history if 'loss' in o]
    return dict(weights={k:X.whole(v) for k,v in model.state_dict().items()}, log=log,
        buffer=t.buffer.state_dict(),
        cut=any(hasattr(p, 'full_tensor') for p in model.parameters()), calls=notes.calls,
        said=[said for o in notes.of.values() for _,said,_ in o],
        replayed=[b['sampling_per_token_logps'][i,b['completion_mask'][i].bool()] for b in seen
            for i in b['replayed'].nonzero()[:,0].tolist()])

if __name__=='__main__':
    out,scene = Path(sys.argv[1]),sys.argv[2]
    X.one_engine()
    if scene=='fsdp2': fsdp2_on_cpu()
    rank = os.environ.get('RANK', '0')
    kw = {} if scene=='alone' else dict(per_device_train_batch_size=6)   # the middle group on both
    if scene!='alone': torch.save(run(out/scene, **kw), out/f'{scene}{rank}')
    at = sys.argv[3] if scene=='alone' else out/scene/'checkpoint-3'
    torch.save(run(out/f'{scene}_on', str(at), **kw), out/f'{scene}_on{rank}')
