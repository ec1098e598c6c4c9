"""Networks trained and served: `python -m examples.models.digits`, gpt, vae, neural_ode, cartpole, lora. Each
prints how it goes and draws a picture; EAS_EXAMPLES_SMALL=1 asks for little sizes."""
