"""LoRA: the small GPT, trained on documents, is fine-tuned on C sources by adapters alone, with its weights
as they are or in 4 bits. `python -m examples.models.lora [folder]`."""

import copy
import os
import sys

import numpy as np

import eager
from eager import optim
from eager.nn import finetune
from examples import size
from examples.models.gpt import GPT, batches, loss_of, text, train
from examples.models.show import Progress, chart


def tune(model, tokens, steps, batch, length, lr=5e-3, what="LoRA"):
    """Trains what is not frozen: the adapters. Gives (model, losses)."""

    @eager.compile
    def step(model, state, x, y):
        loss, grads = eager.value_and_grad(loss_of)(model, x, y)
        model, state = optim.adamw_update(model, grads, state, lr=lr)
        return model, state, loss

    state, losses, source = optim.adamw_init(model), [], batches(tokens, batch, length, seed=1)
    bar = Progress(range(steps), steps, what)
    for _ in bar:
        model, state, loss = step(model, state, *next(source))
        losses.append(loss.item())
        bar.note(loss=np.mean(losses[-20:]))
    return model, losses


def main(folder="."):
    eager.seed(0)
    shape = size((4, 128, 4), (2, 32, 2))
    batch, length = size(16, 2), size(128, 16)
    base, before = train(GPT(*shape), text(("docs",)), size(300, 4), batch, length, what="base")
    other = text(("src/ir", "src/base"), (".c", ".h"))
    curves, counts = {}, []
    for name, quantize in (("LoRA", False), ("QLoRA, 4 bits", True)):
        model = finetune.add_lora(copy.deepcopy(base).requires_grad_(), 8, alpha=16.0, quantize=quantize, targets=("proj", "linear"))
        model, curves[name] = tune(model, other, size(150, 4), batch, length, what=name)
        counts.append(sum(int(np.prod(p.shape)) for p in finetune.lora_parameters(model)))
        path = os.path.join(folder, "adapters")
        finetune.save_finetune_checkpoint(path, lora_params=finetune.lora_state_dict(model), metadata={"rank": 8})
        if not quantize:
            x, y = next(batches(other, batch, length, seed=2))
            with eager.no_grad():
                apart = loss_of(model, x, y).item()
                together = loss_of(finetune.merge_lora(model), x, y).item()
            np.testing.assert_allclose(apart, together, rtol=1e-3)
    assert all(np.isfinite(c).all() for c in curves.values())
    picture = os.path.join(folder, "lora.svg")
    chart(picture, f"fine-tuning by adapters: {counts[0]:,} of {base.num_parameters():,} parameters", curves, y="loss (nats per byte)")
    last = {n: np.mean(c[-20:]) for n, c in curves.items()}
    print(
        f"lora: loss on C sources {curves['LoRA'][0]:.2f}, after tuning {last['LoRA']:.2f}; with 4-bit weights {last['QLoRA, 4 bits']:.2f}; adapters in {path}, curve in {picture}"
    )
    return curves


if __name__ == "__main__":
    main(*sys.argv[1:])
