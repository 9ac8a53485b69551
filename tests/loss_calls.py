"The loss, its metrics and its token terms with tensors and options side by side, as tests write them."
from dataclasses import replace
from grpo_nb.loss import policy_loss
from grpo_nb.parts.loss_settings import LossSettings
from grpo_nb.parts.loss_inputs import LossInputs
from grpo_nb.parts.loss_metrics import loss_metrics
from grpo_nb.variants.token_terms import compare_losses, token_terms

def _inputs(logps, old_logps, advantages, mask, settings='dapo', **given):
    x = {k:given.pop(k) for k in [*given] if k in LossInputs.__dataclass_fields__}
    known = {k:given.pop(k) for k in [*given] if k in LossSettings.__dataclass_fields__}
    if isinstance(settings, LossSettings):
        settings = replace(settings, **known, loss_kwargs=settings.loss_kwargs|given)
    else: settings = LossSettings(**dict(loss_type=settings)|known, loss_kwargs=given)
    return LossInputs(logps, old_logps, advantages, mask, **x),settings

def output_of(*args, **given): return policy_loss(*_inputs(*args, **given))
def loss_of(*args, **given): return output_of(*args, **given).loss
def metrics_of(*args, **given): return loss_metrics(output_of(*args, **given))
def terms_of(*args, **given): return token_terms(*_inputs(*args, **given))
def all_terms_of(*args, **given): return compare_losses(*_inputs(*args, **given))
