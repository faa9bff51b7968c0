"""Other libraries' training loops over LuWu; each needs its library, which nothing else imports.

fabric.py        `LuwuStrategy`: a strategy of Lightning Fabric
transformers.py  `LuwuTrainer`: the Trainer of Hugging Face
"""
