"`python -m grpo_nb.dev`: what a maintainer runs."
from grpo_nb.dev.site import main

if __name__=='__main__': main()
