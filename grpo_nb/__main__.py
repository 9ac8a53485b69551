"`python -m grpo_nb`, and so `accelerate launch -m grpo_nb`: the command line."
from grpo_nb.cli import main

if __name__=='__main__': main()
