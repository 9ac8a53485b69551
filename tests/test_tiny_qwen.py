"The tiny Qwen: its tokenizer, its shape, its shipped weights and the warm start that makes them."
import os, random
import pytest, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from grpo_nb.parts.datasets import chain_sum, spell_backward
from grpo_nb.studies.study import lesson_batch, lessons, warm_start
from grpo_nb.tasks import accuracy_reward, example_group
from grpo_nb.parts.loading import save_model
from grpo_nb.tiny_qwen import (
    PHRASES, SPECIAL_TAGS, sample_texts, encode_prompts, load_model, make_tokenizer,
    tiny_model)


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    n = torch.get_num_threads(); torch.set_num_threads(1); yield; torch.set_num_threads(n)

@pytest.fixture(scope='module')
def tiny(): return load_model('tiny')

# --- tokenizer

def test_any_text_survives_the_round_trip():
    tok,rng = make_tokenizer(),random.Random(0)
    for text in [
        '',
        ' ',
        'a  b',
        '\n\n\t',
        'naïve £5 日本 🙂',
        "don't 12,345.60 \\boxed{x}",
        '<think>1+1=2</think><answer>2</answer>',
    ] + [''.join(chr(rng.choice([*range(32, 127), 10, 233, 8364])) for _ in range(40)) for _ in range(50)]:
        assert tok.decode(tok(text)['input_ids'])==text

def test_tags_survive_decoding_and_specials_do_not():
    tok = make_tokenizer()
    ids = tok('<|im_start|><think>a</think><answer>b</answer><|im_end|><|endoftext|>')['input_ids']
    assert tok.decode(ids, skip_special_tokens=True)=='<think>a</think><answer>b</answer>'
    assert len(ids)==9 and tok.eos_token_id==ids[-2] and tok.pad_token_id==ids[-1]

def test_each_tag_and_phrase_is_one_token_and_every_digit_its_own():
    tok = make_tokenizer()
    assert [t for t in SPECIAL_TAGS+PHRASES if len(tok(t)['input_ids'])!=1]==[]
    assert len(tok('1234')['input_ids'])==4 and len(tok('user')['input_ids'])==4

def test_auto_classes_read_what_save_model_wrote(tmp_path):
    model,tok = tiny_model(3),make_tokenizer()
    save_model(model, tok, tmp_path/'m'); save_model(*load_model(tmp_path/'m'), tmp_path/'again')
    text = '<|im_start|>user\nSpell this word backward (example: sun -> nus): grape £<|im_end|>\n<think>'
    for folder in ('m','again'):
        got, t = (AutoModelForCausalLM.from_pretrained(tmp_path / folder),
                  AutoTokenizer.from_pretrained(tmp_path / folder))
        assert (type(got).__name__ == 'Qwen2ForCausalLM' and t(text)['input_ids'] == tok(text)['input_ids']
                and len(t) == len(tok))
        assert (t.chat_template == tok.chat_template and t.padding_side == 'left'
                and (t.eos_token_id, t.pad_token_id) == (tok.eos_token_id, tok.pad_token_id))
        assert [(a,b) for a,b in zip(model.state_dict().values(), got.state_dict().values())
            if not torch.equal(a, b)]==[]

def test_the_chat_template_writes_chatml():
    tok = make_tokenizer()
    m = [{'role':'system','content':'S'}, {'role':'user','content':'U'}]
    assert (
        tok.apply_chat_template(m, tokenize=False, add_generation_prompt=True)
        == '<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n'
    )
    assert (
        tok.apply_chat_template(m[1:] + [{'role': 'assistant', 'content': 'A'}], tokenize=False)
        == '<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n'
    )


def test_prompts_are_padded_on_the_left_and_read_back(tiny):
    _,tok = tiny
    prompts = list(chain_sum(3, min_terms=3, max_terms=5)['prompt'])+list(spell_backward(2)['prompt'])
    ids,mask = encode_prompts(tok, prompts)
    assert ids.dtype==torch.int64 and mask.dtype==torch.bool and ids.shape==mask.shape and mask[:,-1].all()
    for row,m,p in zip(ids, mask, prompts):
        assert (row[~m] == tok.pad_token_id).all() and tok.decode(row[m]) == tok.apply_chat_template(p,
            tokenize=False, add_generation_prompt=True)
    assert encode_prompts(tok, ['plain'])[0].tolist()==[tok('plain')['input_ids']]

@pytest.mark.parametrize('prompts, says', [([], 'no prompts'), (['a',''], 'prompt 1 is empty')])
def test_prompts_that_cannot_be_encoded_are_named(prompts, says):
    with pytest.raises(ValueError, match=says): encode_prompts(make_tokenizer(), prompts)

def test_messages_need_a_chat_template():
    tok = make_tokenizer(); tok.chat_template = None
    with pytest.raises(ValueError, match='no chat template'):
        encode_prompts(tok, [[{'role': 'user', 'content': 'hi'}]])


# --- model

def test_the_same_seed_gives_the_same_weights_and_leaves_the_outside_alone():
    torch.manual_seed(5); want = torch.rand(1); torch.manual_seed(5)
    a,b,c = tiny_model(0),tiny_model(0),tiny_model(1)
    assert torch.equal(torch.rand(1), want)
    assert [(x, y) for x, y in zip(a.parameters(), b.parameters())
        if not torch.equal(x, y)]==[] and not torch.equal(
        a.lm_head.weight, c.lm_head.weight
    )
    assert not a.training and a.lm_head.weight is a.model.embed_tokens.weight

def test_labels_cover_the_answer_and_its_end_only():
    ids,labels = lesson_batch([([7,8,9],[1,2]), ([7],[3])], pad_id=0)
    assert ids.tolist() == [[7, 8, 9, 1, 2], [7, 3, 0, 0, 0]] and labels.tolist() == [
        [-100, -100, -100, 1, 2],
        [-100, 3, -100, -100, -100],
    ]


# --- shipped weights

def test_the_heads_are_of_a_size_that_vllm_serves(tiny):
    c = tiny[0].config
    assert c.hidden_size//c.num_attention_heads==32 and c.num_attention_heads%c.num_key_value_heads==0

def test_the_group_of_the_course_is_what_the_model_says(tiny):
    group = example_group()
    texts = sample_texts(*tiny, [group['prompt']], n=200)[0]
    first,second = (texts.count(o)/200 for o in (group['completions'][0], group['completions'][2]))
    assert .8<first<.97 and .03<second<.2  # hasty, careful; little else
    assert any(sorted(sample_texts(*tiny, [group['prompt']], n=8, seed=s)[0]) == sorted(group['completions'])
               for s in range(40))


def rewards(model, tok, ds, G=8, seed=0, **kw):
    "(n, G) rewards of sampled answers."
    texts = sum(sample_texts(model, tok, ds['prompt'], n=G, seed=seed, **kw), [])
    rep = lambda k: [x for x in ds[k] for _ in range(G)]
    return torch.tensor(accuracy_reward(None, texts, rep('answer'), rep('task'), rep('entry'))).view(
        len(ds), G
    ), texts


def quality(model, tok, n=200):
    "Pass rate and dead shares at the demo's settings, and the pass rate once <think> is put in its mouth."
    out = {}
    for name,make in dict(chain_sum=chain_sum, spell_backward=spell_backward).items():
        ds = make(n, seed=1, split='test')
        R,_ = rewards(model, tok, ds)
        opened = [tok.apply_chat_template(p, add_generation_prompt=True, tokenize=False) + '<think>'
                  for p in ds['prompt']]
        able = (sum(accuracy_reward(None, sum(sample_texts(model, tok, opened), []), ds['answer'], ds['task'],
                                    ds['entry'])) / n)
        wrong,right = (R.amax(1)==0).float().mean().item(),(R.amin(1)==1).float().mean().item()
        out[name] = dict(share=R.mean().item(), dead=wrong + right, wrong=wrong, right=right,
                                  able=able)
    return out

def assert_quality(q):
    for name,o in q.items():
        assert .25<o['share']<.5, (name, o)
        assert .38<o['dead']<.72 and o['wrong']>.1 and o['right']>.1, (name, o)
        assert o['able']>.93, (name, o)

def test_the_shipped_model_is_able_but_badly_habituated(tiny): assert_quality(quality(*tiny, n=100))

def test_difficulty_sets_how_sparse_the_reward_is(tiny):
    share = lambda make, **kw: rewards(*tiny, make(40, seed=2, split='test', **kw))[0].mean().item()
    easy, middling, sparse = (share(chain_sum, min_terms=3, max_terms=3), share(chain_sum),
                              share(chain_sum, min_terms=6, max_terms=6))
    assert easy>.8 and .25<middling<.5 and .02<sparse<.15
    assert (share(spell_backward, min_word_len=3, max_word_len=4) > 0.9
            and 0.01 < share(spell_backward, min_word_len=8, max_word_len=8) < 0.15)


def test_answers_end_within_48_tokens(tiny):
    model,tok = tiny
    for make in (chain_sum, spell_backward):
        _,texts = rewards(model, tok, make(40, split='test'), G=4)
        assert sum(t.endswith('</answer>') for t in texts)/len(texts)>.97

def test_ask_is_the_same_again_and_greedy_at_temperature_0(tiny):
    prompts = chain_sum(4, split='test')['prompt']
    state = torch.get_rng_state()
    assert (
        sample_texts(*tiny, prompts, n=3, seed=1)
        == sample_texts(*tiny, prompts, n=3, seed=1)
        != sample_texts(*tiny, prompts, n=3, seed=2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    greedy = sample_texts(*tiny, prompts, n=2, temperature=0)
    assert [(a,b) for a,b in greedy
        if a!=b]==[] and greedy==sample_texts(*tiny, prompts, n=2, temperature=0, seed=9)

def test_a_model_that_is_nowhere_is_one_clear_message(tmp_path, capsys, monkeypatch):
    (tmp_path/'empty').mkdir()
    with pytest.raises(ValueError, match="can't be loaded.*save_model"): load_model(tmp_path/'empty')
    with pytest.raises(ValueError, match='no such folder.*save_model'): load_model(tmp_path/'gone')
    monkeypatch.setattr(AutoTokenizer, 'from_pretrained',
                        lambda *a, **k: (_ for _ in ()).throw(OSError('no network')))
    with pytest.raises(ValueError, match='no network'): load_model('Qwen/Qwen2.5-0.5B-Instruct')
    assert 'huggingface.co' in capsys.readouterr().out

# --- warm start

def think_share(model, tok, ds):
    ids,mask = encode_prompts(tok, ds['prompt'])
    with torch.no_grad():
        p = (model(input_ids=ids, attention_mask=mask.long(),
                   position_ids=(mask.long().cumsum(1) - 1).clamp(min=0)).logits[:, -1].softmax(-1))
    return p[:,tok.convert_tokens_to_ids('<think>')].mean().item()

def test_the_habit_follows_the_lessons():
    model,tok = load_model('tiny')
    ds = chain_sum(100, split='test')
    before = think_share(model, tok, ds)
    assert .05<before<.25
    warm_start(model, tok, lessons(40, p_careful=.9), skill_steps=0, habit_steps=40, batch_size=16, lr=1e-2)
    assert think_share(model, tok, ds)>.7
    assert not model.training

def test_the_first_steps_learn_the_form_and_are_the_same_again():
    L = lessons(20)
    runs = []
    for _ in range(2):
        model = tiny_model(0)
        runs.append(warm_start(model, make_tokenizer(), L, skill_steps=20, habit_steps=2, batch_size=8))
        assert len(runs[-1])==22
    assert runs[0]==runs[1] and runs[0][0]>5 and sum(runs[0][-5:])/5<runs[0][0]-1.5
    same,other = (warm_start(tiny_model(0), make_tokenizer(), L, skill_steps=1, habit_steps=0, batch_size=8,
        seed=s) for s in (0, 1))
    assert same==runs[0][:1]!=other

@pytest.mark.skipif(
    not os.environ.get('GRPO_NB_SLOW'),
    reason='makes the weights again, about ten minutes: set GRPO_NB_SLOW=1',
)
def test_weights_made_again_are_as_good(tmp_path):
    model,tok = tiny_model(1),make_tokenizer()
    warm_start(model, tok, lessons(), seed=1)
    save_model(model, tok, tmp_path)
    assert_quality(quality(*load_model(tmp_path)))
