import luwu


def train(rank, steps):
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4, bias=False)
    luwu.init()
    luwu.fully_shard(model)
    optimizer = luwu.optim.SGD(model.parameters(), lr=0.1)

    def closure():  # called again for a step that is lost with a process
        optimizer.zero_grad()
        loss = model(torch.full((2, 4), 1.0 + rank)).square().sum()
        loss.backward()
        return loss

    for _ in range(steps):
        result = optimizer.step(closure)
    return result.grad_norm


def test_my_loop_survives_what_may_happen(luwu_cluster):
    cluster = luwu_cluster(train, workers=2, args=(100,))
    cluster.wait_for_steps(3)
    cluster.kill("switch")
    cluster.suspend("worker", 1)
    cluster.resume("worker", 1)
    cluster.wait_for_steps(12)
    cluster.kill("node")
    assert len(set(cluster.returned())) == 1
