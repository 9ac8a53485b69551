"Leave-one-out advantages (RLOO, arXiv 2402.14740), otherwise plain GRPO"

def entry(): return dict(advantages='leave_one_out', method='keep', learning_rate=2e-4)
