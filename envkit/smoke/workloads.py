"""Three small networks of common kinds: an MLP, a CNN with batch norm, a Transformer block.

Their activations are smooth. With ReLU, rounding switches single units on or off; in networks this small that alone
changed the bfloat16 gradient by 7 %, more than the errors that the comparison has to show.
"""

NAMES = ("mlp", "cnn", "transformer")
CLASSES = 10  # of the random labels
# (batch, width, depth or side or sequence length) by size and name. A step of "large" keeps a GPU busy for
# milliseconds, one of "medium" a CPU core.
SIZES = {
    "small": {"mlp": (64, 64, 2), "cnn": (16, 16, 8), "transformer": (8, 32, 16)},
    "medium": {"mlp": (128, 256, 2), "cnn": (8, 16, 16), "transformer": (4, 128, 32)},
    "large": {"mlp": (2048, 2048, 3), "cnn": (64, 128, 32), "transformer": (16, 1024, 256)},
}
HEADS = 4  # attention heads


def build(torch, name, size, seed, device):
    """Return (model, inputs, targets) on ``device``. The same seed gives the same values on every device."""
    torch.manual_seed(seed)
    batch, width, extent = SIZES[size][name]
    if name == "mlp":
        model = _mlp(torch.nn, width, extent)
        inputs = torch.randn(batch, width)
    elif name == "cnn":
        model = _cnn(torch.nn, width)
        inputs = torch.randn(batch, 3, extent, extent)
    else:
        model = _transformer(torch, width)
        inputs = torch.randn(batch, extent, width)
    targets = torch.randint(0, CLASSES, (batch,))
    return model.to(device).train(), inputs.to(device), targets.to(device)


def _mlp(nn, width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def _cnn(nn, width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.SiLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, CLASSES),
    )


def _transformer(torch, width):
    nn = torch.nn

    class Block(nn.Module):
        """Pre-norm self-attention and feed-forward, mean over the sequence, a linear classifier."""

        def __init__(self):
            super().__init__()
            self.norm_in = nn.LayerNorm(width)
            self.mix = nn.Linear(width, 3 * width)
            self.join = nn.Linear(width, width)
            self.norm_out = nn.LayerNorm(width)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.head = nn.Linear(width, CLASSES)

        def forward(self, inputs):
            batch, length, _ = inputs.shape
            query, key, value = (
                part.reshape(batch, length, HEADS, -1).transpose(1, 2)
                for part in self.mix(self.norm_in(inputs)).chunk(3, dim=-1)
            )
            weights = torch.softmax(query @ key.transpose(-2, -1) * (width // HEADS) ** -0.5, dim=-1)
            mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
            inputs = inputs + self.join(mixed)
            inputs = inputs + self.feed(self.norm_out(inputs))
            return self.head(inputs.mean(dim=1))

    return Block()
