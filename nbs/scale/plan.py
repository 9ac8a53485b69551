"What a step of `full_run.py` holds on each GPU, counted before anything is loaded."
import torch
from transformers import AutoModelForCausalLM

def count_weights(config):
    "Weights in all, of one layer, and of the embedding; on the meta device nothing is allocated."
    with torch.device('meta'): model = AutoModelForCausalLM.from_config(config)
    def count(m): return sum(p.numel() for p in m.parameters())
    layer,embedding = model.get_decoder().layers[0],model.get_input_embeddings()
    return count(model), count(layer), count(embedding)

def memory_plan(config, rows, length, processes=1, passes=1, checkpointing=True):
    """GB on one GPU at the worst moment of a step: float32 weights and AdamW, products in bfloat16.

    One pass has `rows` of `length` tokens (prompt and answer); the gradients of `passes` are added
    up before a step. Several processes shard everything by FSDP2.
    """
    n,layer,embedding = count_weights(config)
    h,f,layers = config.hidden_size,config.intermediate_size,config.num_hidden_layers
    inside = 24*h+8*f   # bytes that a layer keeps of each token for its backward pass
    kept = 4*h*layers+inside if checkpointing else inside*layers
    many = processes>1
    held = {'weights': 4*n/processes,
        'gradients': 4*n/processes,
        'Adam, two averages': 8*n/processes,
        'activations': rows*length*kept,
        'layers put together': 2*(2*layer+embedding)*many,   # this one and the next
        'gradients not yet summed': 2*n*(many and passes>1)}   # whole until the last pass
    return {k:v/1e9 for k,v in held.items()}
