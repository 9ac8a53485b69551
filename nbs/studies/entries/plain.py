"Plain GRPO with the demo's settings"

def entry(): return dict(method='keep', learning_rate=2e-4)
