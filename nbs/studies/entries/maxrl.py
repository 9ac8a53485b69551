"MaxRL's estimator (arXiv 2602.02710) in place of GRPO's advantages, otherwise plain GRPO"

def entry(): return dict(advantages='maxrl', method='keep', learning_rate=2e-4)
