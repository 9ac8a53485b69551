ARMS = 'groups of 4','groups of 8'

def run(arm, seed): return train(seed, G=int(arm[-1]))
