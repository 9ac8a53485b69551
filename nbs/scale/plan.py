"""What a step of `full_run.py` holds on each GPU, counted from the model's config before anything is loaded."""
import torch
from transformers import AutoModelForCausalLM

def count_weights(config):
    "Weights in all, of one layer, and of the embedding; counted on the meta device, where nothing is allocated."
    with torch.device('meta'): model = AutoModelForCausalLM.from_config(config)
    def count(m): return sum(p.numel() for p in m.parameters())
    return count(model), count(model.get_decoder().layers[0]), count(model.get_input_embeddings())

def memory_plan(config, rows, length, processes=1, passes=1, checkpointing=True):
    """GB on one GPU at the worst moment of a step: float32 weights and AdamW, sharded by FSDP2, bfloat16 products.

    `rows` of `length` tokens (prompt and answer) go through one pass; `passes` are added up before a step.
    """
    n,layer,embedding = count_weights(config)
    h,f,layers = config.hidden_size,config.intermediate_size,config.num_hidden_layers
    inside = 24*h+8*f   # bytes that a layer keeps of each token for its backward pass
    kept = 4*h*layers+inside if checkpointing else inside*layers
    held = {'weights':4*n/processes, 'gradients':4*n/processes, 'Adam, two averages':8*n/processes,
        'activations':rows*length*kept,
        'layers put together':2*(2*layer+embedding) if processes>1 else 0,      # this one and the next
        'gradients not yet summed':2*n if processes>1 and passes>1 else 0}   # whole until the last pass
    return {k:v/1e9 for k,v in held.items()}
