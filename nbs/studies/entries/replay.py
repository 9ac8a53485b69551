"GRPO with replay, as in the demo: a stored group takes the place of one without variance"

def entry(): return dict(method='replay', replay_buffer_size=64, learning_rate=2e-4)
