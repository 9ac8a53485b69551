"`python -m grpo_nb.dev`: what a maintainer runs, as `grpo_nb` does inside a clone."
from grpo_nb.cli import main

if __name__=='__main__': main()
