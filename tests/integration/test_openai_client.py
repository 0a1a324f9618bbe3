"""The official Python client against the running cluster."""
import openai
import pytest

import harness


@pytest.fixture(scope="module")
def client(cluster):
    return openai.OpenAI(base_url=cluster.url + "/v1", api_key="unused", max_retries=0, timeout=60 * harness.SLOWDOWN)


MESSAGES = [{"role": "user", "content": "I would like a table for two at an Italian restaurant in San Jose, please."}]


def test_models(client, cluster):
    models = client.models.list().data
    assert [m.id for m in models] == [cluster.model_id]
    assert client.models.retrieve(cluster.model_id).id == cluster.model_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("absent")


def test_chat(client, cluster):
    answer = client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_completion_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 < usage.completion_tokens <= 24


def test_streamed_chat_equals_the_whole_answer(client, cluster):
    whole = client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=24, temperature=0)
    chunks = list(client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=24, temperature=0,
                                                 stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert len({c.id for c in chunks}) == 1 and len({c.created for c in chunks}) == 1
    assert [c.choices[0].delta.role for c in chunks if c.choices and c.choices[0].delta.role] == ["assistant"]
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == \
        [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completion_with_arrays_and_ids(client, cluster):
    answer = client.completions.create(model=cluster.model_id, prompt=["one two", "three four"], max_tokens=4, temperature=0, n=2)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    ids = client.completions.create(model=cluster.model_id, prompt=[[5, 6, 7], [8, 9]], max_tokens=4, temperature=0)
    assert [c.index for c in ids.choices] == [0, 1]


def test_logprobs(client, cluster):
    answer = client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=6, temperature=0,
                                            logprobs=True, top_logprobs=5)
    for token in answer.choices[0].logprobs.content:
        assert len(token.top_logprobs) == 5
        values = [t.logprob for t in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob == values[0] and token.token == token.top_logprobs[0].token  # greedy
        assert all(v <= 0 for v in values)


def test_seeded_sampling_repeats(client, cluster):
    def sample(seed):
        return client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=24, temperature=1.0,
                                              seed=seed).choices[0].message.content
    assert sample(11) == sample(11)
    assert len({sample(seed) for seed in range(4)}) > 1


def test_n_choices_differ_when_sampled(client, cluster):
    answer = client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=24, temperature=1.0, seed=3, n=4)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert len({c.message.content for c in answer.choices}) > 1


def test_stop(client, cluster):
    whole = client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=24, temperature=0)
    text = whole.choices[0].message.content
    stop = text[5:9]
    cut = client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, max_tokens=24, temperature=0, stop=[stop])
    assert cut.choices[0].message.content == text[:text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_errors_are_the_clients_own_classes(client, cluster):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="absent", messages=MESSAGES)
    assert "absent" in unknown.value.message
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=cluster.model_id, messages=MESSAGES, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as empty:
        client.chat.completions.create(model=cluster.model_id, messages=[])
    assert "messages" in empty.value.message


def test_async_client_in_parallel(cluster):
    import asyncio

    async def run():
        async with openai.AsyncOpenAI(base_url=cluster.url + "/v1", api_key="unused", max_retries=0,
                                      timeout=120 * harness.SLOWDOWN) as client:
            async def one(number):
                answer = await client.chat.completions.create(
                    model=cluster.model_id, max_tokens=16, temperature=0,
                    messages=[{"role": "user", "content": f"Question number {number}: where can I see a movie tonight?"}])
                return answer.choices[0].message.content
            together = await asyncio.gather(*(one(n) for n in range(8)))
            alone = [await one(n) for n in range(8)]
            return together, alone
    together, alone = asyncio.run(run())
    assert together == alone  # company changes nothing
