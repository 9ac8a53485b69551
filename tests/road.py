"""One road: a run of either trainer and its record, beside the plain loop over answers.

`chapters(case)` and `on_trl(case)` train a tiny model with the settings of the dict `case`, and compare loss,
gradient and every recorded number of every batch with `plain_loop`. AssertionError names what differs;
`Ambiguous` is raised where a number lies on an edge that float32 and float64 may see differently.
"""
import copy, json, math, tempfile
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace as NS
import torch
import trl_tiny as T
import plain_loop as P
from plain_loop import Answer, away

G,WIDTH = 4,6   # completions of a prompt, their tokens at most
KINDS = {p:('mixed','dead','against','two','mixed')[i%5] for i,p in enumerate(T.PROMPTS)}

# ---- rewards, by the kind of the prompt ---------------------------------------------------------------
def first(prompts, completions, **kw):
    "0 or 1 by the number of words; the same for all of a dead prompt."
    return [1. if KINDS[p]=='dead' else float(len(c.split())%2) for p,c in zip(prompts, completions)]

def second(prompts, completions, **kw):
    "Takes back the first at half the weight for 'against', is flat for 'two'; no opinion on some others."
    one = first(prompts, completions)
    def of(p, c, r):
        if KINDS[p]=='against': return 2-2*r
        return .5 if KINDS[p] in ('dead','two') else None if len(c)%3==0 else float(len(c)%3)/2
    return [of(*o) for o in zip(prompts, completions, one)]

WEIGHTS = dict(one=[1.], two=[1.,.5], measured=[0.,1.])   # 'measured': the first function counts for nothing

# ---- comparing ------------------------------------------------------------------------------------------
compared = 0   # numbers that `close` has looked at

def close(got, want, name, rel=2e-4, tol=2e-5):
    global compared
    compared += 1
    if want is None or got is None or isinstance(want, (str,bool)):
        assert got==want or (want is None and isinstance(got, float) and math.isnan(got)), (name, got, want)
    elif isinstance(want, (list,tuple)):
        assert len(got)==len(want), (name, got, want)
        for i,o in enumerate(zip(got, want)): close(*o, f'{name}[{i}]', rel, tol)
    elif isinstance(want, float) and math.isnan(want): assert math.isnan(got), (name, got)
    else: assert abs(got-want)<=tol+rel*abs(want), (name, got, want)

def same_row(got, want, name, but=()):
    "Every number of a row, and no other."
    seen = {k for k in got if not k.endswith('_time') and k not in but}
    assert seen==set(want), (name, 'not expected:', sorted(seen-set(want)), 'missing:',
        sorted(set(want)-seen))
    for k,v in want.items(): close(got[k], v, f'{name} {k}')

def same_gradient(got, want, name):
    "Gradients of all weights, as shares of the largest."
    top = max(o.abs().max().item() for o in want)
    off = max((a.double()-b).abs().max().item() for a,b in zip(got, want))
    assert off<=3e-4*top+1e-6, (name, 'gradient', off, top)

def check_uses(store, drawn):
    "A group drawn several times in a batch counts its uses one by one, up to those of the store."
    counts = {}
    for e in drawn.values(): counts.setdefault(e['id'], []).append(e['uses'])
    for i,u in counts.items():
        last = store[i].uses
        assert sorted(u)==[*range(last-len(u)+1, last+1)], u

# ---- the model in float64, one plain forward over whole rows --------------------------------------------
class Plain:
    "A copy of a model in float64 that takes over weights as they were."
    def __init__(self, model):
        self.model = copy.deepcopy(model).double().eval()
        self.own_pad = self.model.get_input_embeddings()

    def at(self, weights):
        with torch.no_grad():
            for p,w in zip(self.model.parameters(), weights): p.copy_(w)
        return self

    def __call__(self, rows, temperature=1.):
        "Of each (prompt, completion): log-probs and entropies of the completion's tokens."
        n = max(len(q)+len(o) for q,o in rows)
        ids,mask = torch.zeros(len(rows), n, dtype=torch.long),torch.zeros(len(rows), n, dtype=torch.long)
        for i,(q,o) in enumerate(rows):
            ids[i,:len(q)+len(o)] = torch.tensor(q+o)
            mask[i,:len(q)+len(o)] = 1
        z = self.model(input_ids=ids, attention_mask=mask).logits.double()/temperature
        lp = z.log_softmax(-1)
        out = []
        for i,(q,o) in enumerate(rows):
            here = lp[i,len(q)-1:len(q)+len(o)-1]
            out.append((here.gather(1, torch.tensor(o, dtype=torch.long)[:,None])[:,0],
                -(here.exp()*here).sum(1)))
        return out

def leaves(pairs): return [tuple(o.detach().clone().requires_grad_() for o in p) for p in pairs]

def pull_back(model, pairs, cut):
    "Gradients of the weights from those of log-probs and entropies."
    model.zero_grad()
    total = 0.
    for whole,small in zip(pairs, cut):
        for a,b in zip(whole, small):
            if b is not None and b.grad is not None: total = total+(a*b.grad).sum()
    if torch.is_tensor(total): total.backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]

def weights_of(model): return [p.detach().double().clone() for p in model.parameters()]

# ---- the trainer of the chapters ------------------------------------------------------------------------
def words(c): return None if c is None else ','.join(f'{k}={v}' for k,v in c.items() if v is not None)

@contextmanager
def listening(s):
    "Of every update of a run: what it returned, the weights it began with, and its gradient."
    from grpo_nb import trainer as tr
    told,inner,step = [],tr.update_minibatch,s.optimizer.step
    def update(*args, **kw):
        told.append(NS(before=weights_of(s.model)))
        told[-1].out = inner(*args, **kw)
        return told[-1].out
    def stepped(*args, **kw):
        told[-1].grad = [torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for p in s.model.parameters()]
        return step(*args, **kw)
    tr.update_minibatch,s.optimizer.step = update,stepped
    try: yield told
    finally: tr.update_minibatch,s.optimizer.step = inner,step

def chapters(case):
    "Train with the trainer of the chapters and compare."
    from grpo_nb.replay import Replay
    from grpo_nb.run.record import Recorder
    from grpo_nb.see.monitor import record_batch
    from grpo_nb.trainer import TrainConfig, init_state, make_config, train_batch
    from grpo_nb.variants.token_terms import TokenTermsCallback
    c = NS(**case)
    rows = [dict(prompt=p) for p in T.PROMPTS]
    two = c.rewards!='one'
    args = TrainConfig(num_generations=G, generation_batch_size=4*G, max_completion_length=WIDTH,
        max_steps=1000,
        disable_tqdm=True, learning_rate=c.lr, seed=c.seed, loss_type=c.loss,
            importance_sampling_level=c.level,
        epsilon=c.epsilon, epsilon_high=c.epsilon_high, delta=c.delta, beta=c.beta,
        off_policy_mask_threshold=c.off_policy, top_entropy_quantile=c.quantile, entropy_coef=c.entropy_coef,
        correction=words(c.correction), replay_correction=words(c.replay_correction),
            temperature=c.temperature,
        steps_per_generation=c.parts, num_iterations=c.passes, mask_truncated_completions=c.mask_truncated,
        scale_rewards=c.scale, multi_objective_aggregation=c.aggregation, reward_weights=WEIGHTS[c.rewards],
        shared_prefix=c.shared_prefix, max_grad_norm=c.max_grad_norm,
        top_k=c.top_k, top_p=c.top_p, min_p=c.min_p,
        record_tokens=True,
        replay_stored_per_fresh=c.stored_per_fresh if c.strategy=='replay' else 0, replay_buffer_size=64)
    strategy = c.strategy
    if strategy=='replay': strategy = Replay(64, force_ratio_one=not c.corrected, unreplaced=c.unreplaced,
        seed=c.seed,
        stored_per_fresh=c.stored_per_fresh)
    s = init_state(T.model(), T.tokenizer(), rows, [first, second] if two else [first],
        make_config(args, strategy=strategy))
    TokenTermsCallback().on_train_begin(s)
    with torch.no_grad(): s.model.get_input_embeddings().weight[1] *= c.ends   # how likely the end token is
    if s.ref_model is not None: s.ref_model.load_state_dict(s.model.state_dict())
    run = Chapters(c, s, two)
    with tempfile.TemporaryDirectory() as folder, listening(s) as told:
        rec = Recorder(folder, max_mb=None)
        for _ in range(c.batches):
            told.clear()
            before = weights_of(s.model)
            info = train_batch(s)
            record_batch(rec, s, info)
            got = [json.loads(o) for o in (Path(folder)/'groups.jsonl').read_text().splitlines()]
            run.compare(before, info, told, [o for o in got if o['step']==info.row['step']])
        rec.close()

class Chapters:
    "What the loop knows of a run: the groups that were stored, by number."
    def __init__(self, c, s, two):
        self.c,self.s,self.store,self.next_id = c,s,{},0
        self.plain,self.ref = Plain(s.model),Plain(s.model) if c.beta else None
        for o in (self.plain, self.ref): 
            if o: o.own_pad.padding_idx = None   # a padding token that was sampled is a token like any other
        if self.ref: self.ref.at(weights_of(s.ref_model))
        self.weights = WEIGHTS[c.rewards]
        self.funcs = [first, second] if two else [first]
        self.tokens = 0
        self.how = dict(loss=c.loss, level=c.level, epsilon=c.epsilon, epsilon_high=c.epsilon_high,
            delta=c.delta,
            beta=c.beta, off_policy=c.off_policy, quantile=c.quantile, entropy_coef=c.entropy_coef,
            fresh=c.correction, stored=c.replay_correction or c.correction, max_len=WIDTH)

    # 1. what was sampled, and what it earned
    def sampled(self, before, info):
        x,tok,c = info.sampled,self.s.tokenizer,self.c
        out = []
        for b in range(len(x)):
            q = x.prompt_ids[b][x.prompt_mask[b]].tolist()
            prompt = tok.decode(q)
            comps = [x.completion_ids[b,g][x.completion_mask[b,g]].tolist() for g in range(G)]
            texts = [tok.decode(o, skip_special_tokens=True) for o in comps]
            rewards = [*zip(*(f([prompt]*G, texts) for f in self.funcs))]
            out.append(NS(prompt_key=T.PROMPTS.index(prompt), prompt_ids=q, prompt=prompt, comps=comps,
                texts=texts,
                by_func=[list(r) for r in rewards], sums=[P.total(r, self.weights) for r in rewards],
                dead=P.is_dead(rewards, self.weights, c.aggregation), step=info.row['step'],
                whole=[o[-1]==tok.eos_token_id for o in comps], replayed=False, corrected=True, entry=None))
        asked = [(o.prompt_ids, a) for o in out for a in o.comps]
        with torch.no_grad():
            old = [lp for lp,_ in self.plain.at(before)(asked, c.temperature)]
            for q,o in asked: self.could_be_drawn(q, o)
            ref = [lp for lp,_ in self.ref(asked, c.temperature)] if self.ref else [None]*len(asked)
        A = P.advantages([o.by_func for o in out], self.weights, c.aggregation, c.scale)
        for b,o in enumerate(out):
            o.old,o.ref,o.A = old[b*G:b*G+G],ref[b*G:b*G+G],A[b]
            o.score = P.score(o.A, o.sums)
            o.A_before = o.A
            for g in range(G):
                n = len(o.comps[g])
                close(x.old_logps[b,g,:n].tolist(), o.old[g].tolist(), 'log-probs of what was sampled')
        return out

    def could_be_drawn(self, prompt, completion):
        "Each token was among those that top-k, then top-p, then min-p leave."
        c = self.c
        if not c.top_k and c.top_p==1 and not c.min_p: return
        z = self.plain.model(input_ids=torch.tensor([prompt+completion])).logits[0,len(prompt)-1:-1]
        for p,i in zip((z.double()/c.temperature).softmax(-1), completion):
            p,order = p.sort(descending=True)
            at = int((order==i).nonzero()[0])
            close(p[at].item(), p[at].item(), 'counted')
            kept = p[:c.top_k] if c.top_k else p
            kept = kept/kept.sum()
            assert at<len(kept), 'beyond top-k'
            assert kept[:at].sum()<c.top_p+1e-5, 'beyond top-p'
            assert not c.min_p or kept[at]>=c.min_p*kept[0]*(1-1e-5), 'below min-p'

    # 2. what the strategy made of it
    def make_result(self, fresh, rows, info):
        c,drawn = self.c,{}
        batch = list(fresh)
        if c.strategy=='gfpo':
            kept = []
            for o in batch:
                best = sorted(range(G), key=lambda g: (len(o.comps[g]) if o.sums[g] is not None
                    else math.inf, g))[:G//2]
                kept.append([o.sums[g] if g in best else None for g in range(G)])
            for o,A,r in zip(batch, P.compare(kept, c.scale), kept): o.A,o.alive = A,not P.flat(r)
        if c.strategy=='replay':
            n_extra = min(4*c.stored_per_fresh//(1+c.stored_per_fresh), len(self.store))
            places = [b for b,o in enumerate(fresh) if o.dead
                and self.store]+[*range(len(fresh), len(fresh)+n_extra)]
            assert len(fresh)+n_extra==4
            for b in places:
                e = rows[b]['replacement']
                was = self.store[e['id']]
                was.uses += 1
                drawn[b] = e
                new = copy.copy(was)
                new.replayed,new.corrected,new.entry = True,c.corrected,e
                if b<len(batch): batch[b] = new
                else: batch.append(new)
                close(e['age'], info.row['step']-was.step, 'age')
                close(e['step'], was.step, 'birth')
                close(e['prompt_key'], was.prompt_key, 'key of a newcomer')
                close(e['score'], was.score, 'score of a newcomer')
            check_uses(self.store, drawn)
            for o in fresh:
                o.id = None
                if o.dead or c.mask_truncated and not any(o.whole): continue   # nothing of it would count
                o.id,o.uses = self.next_id,0
                self.store[o.id] = o
                self.next_id += 1
        mask = c.strategy=='mask' or c.strategy=='replay' and c.unreplaced=='mask'
        for b,o in enumerate(batch):
            if c.strategy!='gfpo': o.alive = not o.dead or b in drawn
            o.in_loss = o.alive or not mask
        return batch,drawn

    # 3. an update
    def answers(self, batch, idx, weights):
        rows = [(batch[b].prompt_ids, a) for b in idx for a in batch[b].comps]
        pairs = self.plain.at(weights)(rows, self.c.temperature)
        cut,out = leaves(pairs),[]
        for i,b in enumerate(idx):
            o = batch[b]
            for g in range(G):
                lp,H = cut[i*G+g]
                counts = o.in_loss and (o.whole[g] or not self.c.mask_truncated)
                n = len(lp) if counts else 0
                prox = self.prox[b][g] if self.prox else None
                out.append(Answer(lp[:n], H[:n], o.old[g][:n], o.A[g] if n else 0., o.replayed, o.corrected,
                    o.ref[g][:n] if o.ref[g] is not None else None, prox[:n] if prox is not None else None,
                        b))
        return pairs,cut,out

    def update(self, batch, t, num_items):
        how,idx = self.how,t.out['idx']
        pairs,cut,answers = self.answers(batch, idx, t.before)
        loss,tokens,weights = P.plain_loss(answers, how, num_items)
        H,n_open = P.bonus(answers, how)
        n = sum(map(len, answers))
        if how['entropy_coef']: loss = loss-how['entropy_coef']*n/num_items*H
        if loss.requires_grad: loss.backward()
        grad = pull_back(self.plain.model, pairs, cut)
        norm = math.sqrt(sum(o.square().sum().item() for o in grad))
        top = self.c.max_grad_norm
        if top and norm>top: grad = [o*(top/(norm+1e-6)) for o in grad]
        same_gradient(t.grad, grad, f'update of {idx}')
        m = dict(loss=float(loss), grad_norm=norm)
        r = dict(ratio_mean=1., ratio_max=1., ess_tokens=1., ess_answers=1.)|P.ratio_numbers(answers, how)
        r.pop('clip_frac', None)
        m |= r|{f'clip_ratio/{k}_mean':v for k,v in P.clip_numbers(answers, how).items()}
        some = [a for a in answers if len(a)]
        def per_token(x): return P.mean([v for o in x for v in o.tolist()]) or 0.
        m['entropy'] = per_token([a.entropy for a in some])
        if how['beta']: m['kl'] = per_token([(a.ref-a.logps).exp()-(a.ref-a.logps)-1 for a in some])
        if how['loss']=='cispo': m['cispo_clip_ratio'] = P.mean([float(v) for a in some
            for v in P.capped(a, how)]) or 0.
        t.answers,t.tokens,t.weights,t.n_open,t.num_items,t.cut = answers,tokens,weights,n_open,num_items,cut
        for k,v in m.items(): close(t.out[k], v, f'update of {idx}: {k}')
        return m

    # 4. all of a batch
    def compare(self, before, info, told, rows):
        c,how = self.c,self.how
        fresh = self.sampled(before, info)
        assert len(rows)==4
        batch,drawn = self.make_result(fresh, rows, info)
        counted = sum(len(a) for o in batch for a,w in zip(o.comps, o.whole) if o.in_loss
            and (w or not c.mask_truncated))
        num_items = max(1., counted/c.parts)
        decoupled = any(k and k.get('weight')=='decoupled' for k in (how['fresh'], how['stored']))
        self.prox = None
        if decoupled:
            with torch.no_grad(): all_ = self.plain.at(before)([(o.prompt_ids, a) for o in batch
                for a in o.comps], c.temperature)
            self.prox = [[lp for lp,_ in all_[b*G:b*G+G]] for b in range(4)]
        assert len(told)==c.parts*c.passes
        for i in range(c.passes):
            assert sorted(b for t in told[i*c.parts:(i+1)*c.parts] for b in t.out['idx'])==[0,1,2,3]
        updates = [self.update(batch, t, num_items) for t in told]
        self.history(info.row, fresh, batch, drawn, told, updates)
        for t,later in zip(told[:c.parts], [*told[1:], None]): self.groups(t, later, fresh, batch, rows)

    def history(self, row, fresh, batch, drawn, told, updates):
        c,how = self.c,self.how
        lengths = [len(a) for o in fresh for a in o.comps]
        self.tokens += sum(lengths)
        stds = [d for o in fresh if (d := P.deviation(o.sums)) is not None]
        n,dead = len(fresh),sum(o.dead for o in fresh)
        want = dict(step=row['step'], learning_rate=c.lr, num_tokens=self.tokens,
            reward=P.mean([r for o in fresh for r in o.sums]), reward_std=P.mean(stds) or 0.,
            frac_reward_zero_std=dead/n, frac_one_text=sum(all(a==o.comps[0] for a in o.comps)
                for o in fresh)/n)
        for i,f in enumerate(self.funcs):
            m = P.mean([r[i] for o in fresh for r in o.by_func])
            want[f'rewards/{f.__name__}/mean'] = math.nan if m is None else m
        want |= {'completions/mean_length':P.mean(lengths), 'completions/max_length':max(lengths),
            'completions/clipped_ratio':1-P.mean([float(w) for o in fresh for w in o.whole])}
        want |= {k:P.mean([u[k] for u in updates]) for k in updates[0]}
        alive = [o.alive for o in batch]
        replaced = [b for b in drawn if b<n]
        want |= {f'replay/{k}':v for k,v in dict(dead=dead, replaced=len(replaced), stored=4-n,
            unreplaced=sum(not o for o in alive), live_before=1-dead/n,
            live_after=sum(a and o.in_loss for a,o in zip(alive, batch))/4,
            unique_prompts=len({o.prompt_key for o in batch if o.in_loss})).items()}
        if c.strategy=='replay': want['replay/buffer_size'] = len(self.store)
        if drawn:
            ages,uses = [e['age'] for e in drawn.values()],[e['uses'] for e in drawn.values()]
            want |= {'replay/age_mean':P.mean(ages), 'replay/age_max':max(ages),
                'replay/uses_mean':P.mean(uses)}
            all_ = [a for t in told for a in t.answers]
            want |= {f'replay/{k}':v for k,v in P.ratio_numbers([a for a in all_ if a.replayed], how,
                True).items()}
            if r := P.ratio_numbers([a for a in all_ if not a.replayed], how,
                True): want['clip_ratio/fresh_mean'] = r['clip_frac']
        same_row(row, want, f'row of step {row["step"]}')

    def groups(self, t, later, fresh, batch, rows):
        "The recorded groups of one update of the first pass."
        c,how = self.c,self.how
        after = self.plain.at(later.before)([(batch[b].prompt_ids, a) for b in t.out['idx']
            for a in batch[b].comps],
            c.temperature) if later else None
        terms = self.terms(t)
        for i,b in enumerate(t.out['idx']):
            o,row,name = batch[b],rows[b],f'group {b} of step {rows[b]["step"]}'
            mine = t.answers[i*G:i*G+G]
            new = o.entry
            sampled = b<len(fresh)
            f = fresh[b] if sampled else None
            units = [v for a in mine if len(a) for v in P.level_of((a.logps-a.old).detach(),
                how).exp().tolist()]
            held = [v for a in mine if len(a) for v in P.seen_by_clip(a, how, a.old)[1]]
            want = dict(step=row['step'], group=b, prompt_key=f.prompt_key if sampled else o.prompt_key,
                clip_frac=P.mean(map(float, held)) or 0.,
                ratio_hist=None, grad_norm=None, id=getattr(f, 'id', None), score=f.score if sampled
                    else None,
                dead=f.dead if sampled else False,
                dead_reason=P.why_dead(f.sums) if sampled and f.dead else None,
                outcome='stored' if not sampled else 'replaced' if new else
                    'trained' if o.alive else 'kept' if o.in_loss else 'masked')
            if c.strategy=='gfpo': want['score'] = P.score(o.A, o.sums)
            assert row['ratio_hist']['counts']==P.histogram(units), (name, 'histogram')
            if sampled: want |= dict(prompt=f.prompt, n_tokens=[len(a) for a in f.comps],
                truncated=[not w for w in f.whole],
                rewards=f.sums, advantages_before=f.A_before, advantages=o.A)
            for k,v in want.items():
                if k!='ratio_hist': close(row[k], v, f'{name}: {k}')
            if sampled:
                for j,fn in enumerate(self.funcs):
                    close(row['rewards_by_func'][fn.__name__], [r[j] for r in f.by_func],
                        f'{name}: rewards by function')
                assert row['completions']==f.texts and [len(x) for x in row['tokens']]==want['n_tokens'], name
                close(row['logps'], [a.tolist() for a in f.old], f'{name}: logps', tol=6e-4)
            place = row['replacement'] or row if sampled else row['replacement']
            if sampled:
                r = [P.level_of((a.logps-a.old).detach(), how).exp().expand(len(a)).tolist() if len(a)
                    else [] for a in mine]
                close(place['ratios'], r, f'{name}: ratios', tol=6e-4)
                told = place['terms']
                close(told['loss'], t.out['loss'], f'{name}: loss')
                for k,v in terms.items(): close(told['by'][c.loss][k], v[i*G:i*G+G], f'{name}: {k}',
                    rel=1e-3 if k=='share' else 2e-4)
                flat = dict(policy=[a.logps for a in mine], old=[a.old for a in mine])
                if how['beta']: flat |= dict(ref=[a.ref for a in mine],
                    kl=[(a.ref-a.logps).exp()-(a.ref-a.logps)-1 for a in mine])
                if after: flat['after'] = [lp[:len(a)] for (lp,_),a in zip(after[i*G:i*G+G], mine)]
                for k,v in flat.items(): close(told[k], [x.tolist() for x in v], f'{name}: {k}', tol=1e-4)

    def terms(self, t):
        "What each token adds to the loss, in the words of a record: weight, term, share, clip."
        how,A = self.how,t.answers
        open_ = P.most_open(A, how)
        n = sum(map(len, A))
        per = how['entropy_coef']*n/t.num_items/max(1, t.n_open) if how['entropy_coef'] else 0.
        term = [(w*x.detach()-per*a.entropy.detach()*q).tolist() if len(a) else []
            for a,x,w,q in zip(A, t.tokens, t.weights, open_)]
        pull = [[0.]*len(a) if lp.grad is None else ((lp.grad*(1-lp.detach().exp()))**2).tolist()[:len(a)]
            for a,(lp,_) in zip(A, t.cut)]
        all_ = sum(map(sum, pull))
        marks = []
        for a in A:
            if not len(a):
                marks.append([])
                continue
            r,h = P.seen_by_clip(a, how)
            flags = [(1 if x>1 else -1) if o else 0 for x,o in zip(r, h)]
            if how['loss']=='cispo': flags = [f+2*k for f,k in zip(flags, P.capped(a, how))]
            marks.append(flags*len(a) if len(flags)==1 else flags)
        return dict(weight=[w if len(a) else 0. for a,w in zip(A, t.weights)], term=term, clip=marks,
            **dict(share=[[v/all_ for v in o] for o in pull]) if all_>1e-10
                else {})   # else it is rounding alone

# ---- the trainer on TRL ---------------------------------------------------------------------------------
def recorded(values, counts):
    "An answer's numbers as a record has them: None where a token does not count, no list where none does"
    own = iter(values)
    return [next(own) if k else None for k in counts] if values else []

@contextmanager
def generating(told, tools):
    "What TRL sampled, with which weights; `tools`: as if some tokens came from a tool."
    from trl import GRPOTrainer
    made,sampled = GRPOTrainer._generate_and_score_completions,GRPOTrainer._generate
    def generate(self, prompts):
        out = sampled(self, prompts)
        told.append(NS(weights=weights_of(self.model), prompts=list(prompts), prompt_ids=out[0],
            comps=[list(o) for o in out[1]]))
        return out
    def hook(self, inputs):
        x = made(self, inputs)
        if tools:
            x['tool_mask'] = torch.ones_like(x['completion_mask'])
            x['tool_mask'][::2,1:3] = 0
            x['num_items_in_batch'] = (x['completion_mask']*x['tool_mask']).sum()
        return x
    GRPOTrainer._generate,GRPOTrainer._generate_and_score_completions = generate,hook
    try: yield
    finally: GRPOTrainer._generate,GRPOTrainer._generate_and_score_completions = sampled,made

def stop_at(t, n):
    "Let a trainer save and end after `n` steps."
    from transformers import TrainerCallback
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kw):
            if state.global_step==n: control.should_save = control.should_training_stop = True
    t.add_callback(Stop())

def train(t, micro, grads, **kw):
    "Train, and put down micro-batches with weights and loss, and gradients of the optimizer's steps."
    from transformers import TrainerCallback
    inner = t._compute_loss
    def loss(model, x):
        micro.append(NS(weights=weights_of(t.model), rows=x['replay_row'].tolist(), step=t.state.global_step))
        out = inner(model, x)
        micro[-1].loss = out.item()
        return out
    class Gradient(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kw):
            grads.append([torch.zeros_like(p) if p.grad is None else p.grad.clone()
                for p in t.model.parameters()])
    t._compute_loss = loss
    t.add_callback(Gradient())
    t.train(**kw)

def on_trl(case):
    "Train with the trainer on TRL and compare."
    from grpo_nb.run.reading import read_run
    c = NS(**case)
    two = c.rewards!='one'
    spg = c.parts*c.accumulate
    kw = dict(per_device_train_batch_size=4*G//spg, steps_per_generation=spg,
        gradient_accumulation_steps=c.accumulate,
        num_iterations=c.passes, max_steps=c.batches*c.parts*c.passes, learning_rate=c.lr,
            lr_scheduler_type='constant',
        max_completion_length=WIDTH, temperature=c.temperature, loss_type=c.loss,
            importance_sampling_level=c.level,
        epsilon=c.epsilon, epsilon_high=c.epsilon_high, delta=c.delta, beta=c.beta,
            use_bias_correction_kl=c.bias_kl,
        off_policy_mask_threshold=c.off_policy, top_entropy_quantile=c.quantile, entropy_coef=c.entropy_coef,
        mask_truncated_completions=c.mask_truncated, scale_rewards=c.scale,
            multi_objective_aggregation=c.aggregation,
        reward_weights=WEIGHTS[c.rewards], max_grad_norm=c.max_grad_norm or 1e6,
            replay_unreplaced=c.unreplaced,
        replay_stored_per_fresh=c.stored_per_fresh, record_tokens=True,
        replay_correction=words(c.replay_correction), seed=c.seed,
        top_k=c.top_k, top_p=c.top_p, min_p=c.min_p)
    if c.problems:   # so many, in turn: one alone is every group of a batch
        kw['dataset'] = T.Dataset.from_dict(dict(prompt=(T.PROMPTS[:c.problems]*4)[:4]))
    if c.pad:   # padding that is not token 0, and is never sampled
        tok = T.tokenizer(pad='<unk>')
        kw |= dict(processing_class=tok, generation_kwargs=dict(suppress_tokens=[tok.pad_token_id]))
    if c.adaptive: kw |= dict(use_adaptive_entropy=True, entropy_target=c.adaptive, entropy_coef_delta=.01,
        entropy_coef_min=0.,
        entropy_coef_max=.1, entropy_coef=c.entropy_coef or .02)
    funcs = [first, second] if two else [first]
    t = T.trainer(funcs, **kw)
    with torch.no_grad(): t.model.get_input_embeddings().weight[1] *= c.ends
    if t.ref_model is not None: t.ref_model.load_state_dict(t.model.state_dict())
    start,told,micro,grads = weights_of(t.model),[],[],[]
    with generating(told, c.tools):
        if c.resume:   # a run that stops after its first batch, and another that goes on from there
            first_ = t
            stop_at(t, c.parts*c.passes)
            train(t, micro, grads)
            lr = dict(learning_rate=10*c.lr) if c.other_rate else {}   # the checkpoint's rate goes on
            t = T.trainer(funcs, **kw|dict(output_dir=first_.args.output_dir)|lr)
            if t.ref_model is not None: t.ref_model.load_state_dict(first_.ref_model.state_dict())
        train(t, micro, grads, resume_from_checkpoint=c.resume or None)
    OnTRL(c, t, two, start).compare(told, micro, grads, read_run(t.args.output_dir))

class OnTRL:
    "What the loop knows of a run on TRL."
    def __init__(self, c, t, two, start):
        self.c,self.t,self.store = c,t,{}
        self.plain,self.ref = Plain(T.model()),Plain(T.model()).at(start) if c.beta else None
        self.weights,self.funcs = WEIGHTS[c.rewards],[first, second] if two else [first]
        self.per = c.parts*c.passes*c.accumulate   # micro-batches of a batch
        self.aligned = c.accumulate%self.per==0    # then TRL takes the log-probs of fresh rows as they are
        self.how = dict(loss=c.loss, level=c.level, epsilon=c.epsilon, epsilon_high=c.epsilon_high,
            delta=c.delta,
            beta=c.beta, off_policy=c.off_policy, quantile=c.quantile, bias_kl=c.bias_kl,
                stored=c.replay_correction,
            max_len=WIDTH)
        self.coef,self.last = (c.entropy_coef or .02 if c.adaptive else c.entropy_coef),math.inf

    # 1. what was sampled
    def sampled(self, made, number, step):
        c,tok,out = self.c,self.t.processing_class,[]
        for b in range(len(made.comps)//G):
            comps,q,prompt = made.comps[b*G:b*G+G],list(made.prompt_ids[b*G]),made.prompts[b*G]
            texts = tok.batch_decode(comps, skip_special_tokens=True)
            rewards = [*zip(*(f([prompt]*G, texts) for f in self.funcs))]
            o = NS(prompt=prompt, prompt_ids=q, comps=comps, texts=texts, by_func=[list(r) for r in rewards],
                sums=[P.total(r, self.weights) for r in rewards],
                    dead=P.is_dead(rewards, self.weights, c.aggregation),
                step=step, whole=[o[-1] in (tok.pad_token_id, 1) for o in comps], entry=None, replayed=False)
            o.counts = [[not (c.tools and i%2==0 and j in (1, 2)) and (o.whole[i] or not c.mask_truncated)
                for j in range(len(a))] for i,a in enumerate(comps)]
            out.append(o)
        asked = [(o.prompt_ids, a) for o in out for a in o.comps]
        with torch.no_grad():
            old = [lp for lp,_ in self.plain.at(made.weights)(asked, c.temperature)]
            ref = [lp for lp,_ in self.ref(asked, c.temperature)] if self.ref else [None]*len(asked)
        A = P.advantages([o.by_func for o in out], self.weights, c.aggregation, c.scale)
        for b,o in enumerate(out):
            o.old,o.ref,o.A = old[b*G:b*G+G],ref[b*G:b*G+G],A[b]
            o.score = P.score(o.A, o.sums)
        return out

    # 2. what is trained on
    def make_result(self, fresh, rows, now):
        c,drawn,batch = self.c,{},list(fresh)
        known = bool(self.store)
        for b,row in enumerate(rows):
            e = row['replacement']
            if b<len(fresh): assert (e is not None)==(fresh[b].dead and known), (b, e, known)
            else: assert e is not None
            if not e: continue
            was = self.store[e['id']]
            was.uses += 1
            new = copy.copy(was)
            new.replayed,new.entry,drawn[b] = True,e,e
            if b<len(fresh): batch[b] = new
            else: batch.append(new)
            close(e['age'], now-was.step, 'age')
            close(e['step'], was.step+1, 'birth')
            close(e['score'], was.score, 'score of a newcomer')
            close(e['advantages'], was.A, 'advantages of a newcomer')
            close(e['rewards'], was.sums, 'rewards of a newcomer')
            kept = ['' if c.mask_truncated and not w else x for x,w in zip(was.texts,
                was.whole)]   # the others are not stored
            assert (e['completions'],e['prompt'])==(kept,was.prompt), (e['completions'], kept)
        check_uses(self.store, drawn)
        for o in fresh:
            o.id = None
            if o.dead or c.mask_truncated and not any(o.whole): continue   # nothing of it would count
            o.id,o.uses = len(self.store),0
            self.store[o.id] = o
        for b,o in enumerate(batch):
            o.alive = not o.dead or b in drawn
            o.in_loss = o.alive or c.unreplaced!='mask'
        return batch,drawn

    # 3. a micro-batch
    def micro(self, batch, m, items):
        c,how = self.c,self.how
        rows = [(batch[r//G].prompt_ids, batch[r//G].comps[r%G]) for r in m.rows]
        pairs = self.plain.at(m.weights)(rows, c.temperature)
        cut,answers = leaves(pairs),[]
        for (lp,H),r in zip(cut, m.rows):
            o,i = batch[r//G],r%G
            k = torch.tensor(o.counts[i]) if o.in_loss else torch.zeros(len(lp), dtype=torch.bool)
            old = lp.detach() if self.aligned and not o.replayed else o.old[i]
            ref = o.ref[i]
            answers.append(Answer(lp[k], H[k], old[k], o.A[i], o.replayed, True, ref[k] if ref is not None
                else None, group=r//G))
        if c.aggregation=='normalize_then_sum': self.away_from_rounding(answers)
        ga = c.accumulate
        loss,tokens,weights = P.plain_loss(answers, how, max(1, items)*ga/(c.parts*ga), len(answers)*ga)
        if c.loss=='bnpo': loss,weights = loss/ga,[w/ga for w in weights]
        H,n_open = P.bonus(answers, how)
        m.policy = float(loss)*(1 if c.loss in ('dapo','cispo','vespo') else ga)
        coef = self.coef if not c.adaptive or self.last<=c.adaptive else 0.
        if coef: loss = loss-coef*H/ga
        if loss.requires_grad: loss.backward()
        m.H = float(H)*n_open,n_open
        m.grad = pull_back(self.plain.model, pairs, cut)
        close(m.loss, float(loss), f'loss of a micro-batch at step {m.step}')
        m.answers,m.total = answers,float(loss)
        return self.metrics(answers)

    def away_from_rounding(self, answers):
        "`Ambiguous` where a clip sees the sign of an advantage of 0: TRL's is rounding of either sign."
        for a in answers:
            if not len(a) or abs(a.A)>=1e-6: continue
            r = P.ratio(a, a.old, self.how).detach()
            edges = P.edges_of_clip(self.how, P.correction_of(a, self.how)) or (0., math.inf, None)
            low,high = edges[0],min(edges[1], edges[2] or math.inf)
            if self.c.loss=='cispo': high = min(high, self.c.epsilon_high)
            if r.min()<low or r.max()>high: raise P.Ambiguous(f'0 beyond the clip: {r.tolist()}')

    def metrics(self, answers):
        "What TRL logs of a micro-batch."
        c,how = self.c,self.how
        some = [a for a in answers if len(a)]
        def per_token(x): return sum(v for o in x for v in o.tolist())/max(1, sum(map(len, x)))
        m = dict(entropy=per_token([a.entropy.detach() for a in some]))
        if c.beta:
            kl = []
            for a in some:
                d = (a.ref-a.logps).detach()
                kl.append((d.exp()-d-1)*(P.ratio(a, a.old, how).detach() if c.bias_kl else 1.))
            m['kl'] = per_token(kl)
        flags = [self.flags(a) for a in answers]
        def share(k): return P.mean([float(o[k]) for row in flags for o in row]) or 0.
        def by_row(k): return [P.mean([float(o[k]) for o in row]) for row in flags if row]
        if c.loss in P.PPO:
            m |= {f'clip_ratio/{k}_mean':share(k) for k in ('low','high')}
            m['clip_ratio/region_mean'] = m['clip_ratio/low_mean']+m['clip_ratio/high_mean']
            m |= {'clip_ratio/low_min':min(by_row('low'), default=math.nan),
                'clip_ratio/high_max':max(by_row('high'), default=math.nan)}
        if c.loss=='cispo': m['cispo_clip_ratio'] = share('cap')
        return m

    def flags(self, a):
        "Of each unit of a row (TRL counts a wholly masked answer too): clipped below, above; at CISPO's cap."
        how,c = self.how,self.c
        if not len(a): return [dict(low=False, high=False, cap=False)] if how['level']=='sequence' else []
        r,held = P.seen_by_clip(a, how)
        cap = P.capped(a, how) if c.loss=='cispo' else [False]*len(r)
        if not P.changes(how['stored']):   # TRL's own count: a ratio beyond `delta` counts as `delta`
            top = math.inf if c.delta is None else c.delta
            high = c.epsilon if c.epsilon_high is None else c.epsilon_high
            return [dict(low=a.A<0 and min(x, top)<1-c.epsilon, high=a.A>0 and min(x, top)>1+high, cap=k)
                for x,k in zip(r, cap)]
        return [dict(low=h and x<1, high=h and x>1, cap=k) for x,h,k in zip(r, held, cap)]

    # 4. the run
    def compare(self, told, micro, grads, run):
        c,logs = self.c,[o for o in self.t.state.log_history if 'loss' in o]
        assert len(micro)==c.batches*self.per and len(told)==c.batches and len(logs)==len(grads)
        for number in range(c.batches):
            mine = micro[number*self.per:(number+1)*self.per]
            now = mine[0].step
            fresh,rows = self.sampled(told[number], number, now),run.by_step[now+1]
            assert len(rows)==4
            batch,drawn = self.make_result(fresh, rows, now)
            items = sum(sum(k) for o in batch if o.in_loss for k in o.counts)
            for at in range(0, self.per, c.accumulate):
                some,step = mine[at:at+c.accumulate],now+at//c.accumulate
                assert {m.step for m in some}=={step}
                parts = [self.micro(batch, m, items) for m in some]
                grad = [sum(o) for o in zip(*(m.grad for m in some))]
                norm = math.sqrt(sum(o.square().sum().item() for o in grad))
                top = c.max_grad_norm
                if top and norm>top: grad = [o*(top/(norm+1e-6)) for o in grad]
                same_gradient(grads[step], grad, f'step {step}')
                row = dict(loss=sum(m.total for m in some), grad_norm=norm, learning_rate=c.lr, step=step+1)
                for k in parts[0]:
                    known = [o[k] for o in parts if o[k]==o[k]]
                    row[k] = P.mean(known)
                self.history(logs[step], row, some, fresh, batch, drawn, at)
            for part in range(0, self.per//c.passes): assert sorted(r for m in mine[:self.per//c.passes]
                for r in m.rows)==[*range(4*G)]
            self.groups(mine[:self.per//c.passes], fresh, batch, rows)

    def history(self, got, row, some, fresh, batch, drawn, at):
        c,how,n = self.c,self.how,len(fresh)
        row['replay/buffer_size'],row['replay/fill'] = len(self.store),len(self.store)/64
        all_ = [a for m in some for a in m.answers]
        replayed = P.ratio_numbers([a for a in all_ if a.replayed], how)
        row |= {f'replay/{k}':v for k,v in replayed.items()}
        if replayed and (r := P.ratio_numbers([a for a in all_ if not a.replayed],
            how)): row['clip_ratio/fresh_mean'] = r['clip_frac']
        if self.coef is not None and (c.adaptive or c.entropy_coef):
            if c.adaptive:
                H,k = (sum(o) for o in zip(*(m.H for m in some)))
                H /= max(1, k)
                away(H, c.adaptive)
                self.coef = min(self.coef+.01, .1) if H<=c.adaptive else max(self.coef-.01, 0.)
                self.last = H
            row['entropy_coef'] = self.coef
            row['policy_loss'] = P.mean([m.policy for m in some])
        if at==0:
            dead = sum(o.dead for o in fresh)
            stds = [d for o in fresh if (d := P.deviation(o.sums)) is not None]
            replaced = [b for b in drawn if b<n]
            came = len(drawn)-len(replaced)
            idle = dead-len(replaced)+4-n-came
            row |= {f'replay/{k}':v for k,v in dict(dead=dead, replaced=len(replaced),
                unreplaced=dead-len(replaced),
                live_before=1-dead/n, live_after=1-idle/4, unique_prompts=len({o.prompt
                    for o in batch})).items()}
            row['replay/stored'] = came
            if drawn:
                ages,uses = [e['age'] for e in drawn.values()],[e['uses'] for e in drawn.values()]
                row |= {'replay/age_mean':P.mean(ages), 'replay/age_max':max(ages),
                    'replay/uses_mean':P.mean(uses)}
            row |= dict(reward=P.mean([r for o in fresh for r in o.sums]), reward_std=P.mean(stds) or 0.,
                frac_reward_zero_std=dead/n, frac_one_text=sum(len(set(o.texts))==1 for o in fresh)/n)
            for i,f in enumerate(self.funcs): row[f'rewards/{f.__name__}/mean'] = P.mean([r[i]
                for o in fresh for r in o.by_func])
        trls = {k for k in got if k.startswith('completions/')
            or k.endswith('/std')}|{'epoch','num_tokens','vespo/phi_seq_mean'}
        same_row(got, row, f'row of step {got["step"]}', trls)

    def groups(self, micro, fresh, batch, rows):
        how = self.how
        of = {r:(m, i) for m in micro for i,r in enumerate(m.rows)}
        for b,row in enumerate(rows):
            o,f,name = batch[b],fresh[b] if b<len(fresh) else None,f'group {b} of step {row["step"]}'
            mine = [of[b*G+i][0].answers[of[b*G+i][1]] for i in range(G)]
            units = [v for a in mine if len(a) for v in P.level_of((a.logps-a.old).detach(),
                how).exp().tolist()]
            held = [v for a in mine if len(a) for v in P.seen_by_clip(a, how)[1]]
            assert row['ratio_hist']['counts']==P.histogram(units), (name, 'histogram')
            close(row['clip_frac'], P.mean(map(float, held)) or 0., f'{name}: clip_frac')
            want = dict(group=b, advantages=o.A, outcome='stored' if f is None else 'replaced' if o.entry
                else
                'trained' if o.alive else 'kept' if o.in_loss else 'masked')
            if f: want |= dict(dead=f.dead, dead_reason=P.why_dead(f.sums) if f.dead else None,
                rewards=f.sums,
                advantages_before=f.A,
                score=f.score, id=f.id, prompt=f.prompt, n_tokens=[len(a) for a in f.comps],
                    truncated=[not w for w in f.whole])
            for k,v in want.items(): close(row[k], v, f'{name}: {k}')
            if f: assert row['completions']==f.texts
            place = row['replacement'] or row
            r = [P.level_of((a.logps-a.old).detach(), how).exp().expand(len(a)).tolist() if len(a) else []
                for a in mine]
            r = [recorded(*x) for x in zip(r, o.counts)]
            if f:
                for j,fn in enumerate(self.funcs): close(row['rewards_by_func'][fn.__name__],
                    [x[j] for x in f.by_func], f'{name}: {fn}')
                close(place['ratios'], r, f'{name}: ratios', tol=6e-4)
                olds = [recorded(a.old.tolist(), k) for a,k in zip(mine, o.counts)]
                olds = [[]]*G if o.replayed else olds   # a newcomer was sampled in another batch
                close(row['logps'], olds, f'{name}: logps', tol=6e-4)
