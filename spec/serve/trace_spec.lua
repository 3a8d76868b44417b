local trace = require "fewhead.serve.trace"

-- The folder with the public traces, as they were published; nil: what they hold is not tested.
local DATA = os.getenv("FEWHEAD_TRACES")

local path

local function write(text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

before_each(function() path = os.tmpname() end)
after_each(function() os.remove(path) end)

-- read() of a file with this text, its own name taken out of the message.
local function read(text, options)
  write(text)
  local result, err = trace.read(path, options)
  return result, err and (err:gsub(path:gsub("%p", "%%%0"), "FILE"))
end

local function column(result, field)
  local list = {}
  for i, request in ipairs(result.requests) do list[i] = request[field] end
  return list
end

local MOONCAKE = table.concat({
  '{"timestamp": 1000, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]}',
  '{"timestamp": 1000, "input_length": 1030, "output_length": 0, "hash_ids": [7, 8, 9]}',
  '{"timestamp": 1500, "input_length": 1536, "output_length": 1, "hash_ids": [7, 8, 9]}',
  '{"timestamp": 4000, "input_length": 600, "output_length": 1, "hash_ids": [1, 8]}',
}, "\n")

local HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
local AZURE = HEADER .. "\r\n2023-12-31 23:59:59.5000000,4808,10\r\n2024-01-01 00:00:00.7500000,3180,0"

describe("trace.read", function()
  it("reads Mooncake lines, with the prefix that earlier requests left in the cache", function()
    local t = read(MOONCAKE)
    assert.equal("mooncake", t.format)
    assert.same({ 0, 0, 500, 3000 }, column(t, "t_ms"))
    assert.same({ 1000, 1030, 1536, 600 }, column(t, "input"))
    assert.same({ 5, 0, 1, 1 }, column(t, "output"))
    -- 2 of 3 blocks known; all known, one token is computed all the same; block 8 is known but not as the leading run
    assert.same({ 1000, 6, 1, 600 }, column(t, "uncached"))
    assert.equal(0, t.skipped)
  end)

  it("reads the Azure CSV with CRLF and no last line end, over the turn of a year", function()
    local t = read(AZURE)
    assert.equal("azure", t.format)
    assert.same({ 0, 1250 }, column(t, "t_ms"))
    assert.same({ 4808, 3180 }, column(t, "input"))
    assert.same({ 4808, 3180 }, column(t, "uncached"))
    assert.same({ 10, 0 }, column(t, "output"))
    assert.same(t.requests, read(AZURE:gsub("\r", "") .. "\n\n").requests)
    assert.same(t.requests, read("\239\187\191" .. AZURE).requests) -- as spreadsheets save it
  end)

  it("tells the format by content, not by name", function()
    assert.equal("mooncake", read("\n" .. MOONCAKE:gsub("\n", "\r\n") .. "\r\n").format)
    local t, err = read("timestamp,input_length\n1,2\n")
    assert.is_nil(t)
    assert.equal('FILE:1: no trace: wanted a JSON line, {"input_length": .., the Azure header ' .. HEADER
      .. ", or the BurstGPT header Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", err)
  end)

  it("reads BurstGPT in both schemas, and leaves failed requests out", function()
    local t = assert(read("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\r\n"
      .. "5,ChatGPT,472,18,490,Conversation log\r\n45.5,GPT-4,1087,230,1317,API log\r\n50,ChatGPT,0,0,0,Conversation log"))
    assert.same({ "burstgpt", 1 }, { t.format, t.failed })
    assert.same({ 0, 40500 }, column(t, "t_ms"))
    assert.same({ 472, 1087 }, column(t, "uncached"))
    assert.same({ 18, 230 }, column(t, "output"))
    assert.matches("; 1 requests failed and are left out$", tostring(t))
    local second = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    t = assert(read(second .. "7,s1,2.5,GPT-4,10,3,13,API log\n"))
    assert.same({ { 10 }, { 3 } }, { column(t, "input"), column(t, "output") })
    local _, err = read(second .. "7,GPT-4,10,3,13,API log\n")
    assert.equal("FILE:2: got 6 columns, wanted 8: " .. second:sub(1, -2), err)
    _, err = read(second .. "soon,s1,2.5,GPT-4,10,3,13,API log\n")
    assert.equal('FILE:2: Timestamp: got "soon", wanted seconds', err)
    _, err = read(second .. "7,s1,2.5,GPT-4,1.5,3,13,API log\n")
    assert.equal('FILE:2: Request tokens: got "1.5", wanted a whole number >= 1', err)
  end)

  it("reads lines of lengths, with or without times", function()
    local t = assert(read('{"input_length": 10, "output_length": 2}\n{"input_length": 20, "output_length": 3}'))
    assert.same({ "lengths", { 0, 0 }, { 10, 20 } }, { t.format, column(t, "t_ms"), column(t, "uncached") })
    t = assert(read('{"timestamp": 5, "input_length": 10, "output_length": 2}\n'
      .. '{"timestamp": 9, "input_length": 20, "output_length": 3}'))
    assert.same({ 0, 4 }, column(t, "t_ms"))
    local _, err = read('{"input_length": 10, "output_length": 2}\n{"input_length": 513, "output_length": 3, "hash_ids": [1, 2]}')
    assert.equal("FILE:2: hash_ids: got some, but the first line has none", err)
  end)

  it("sorts requests that stand out of order, equal times as they stand, and says so", function()
    local t = assert(read('{"timestamp": 9, "input_length": 1, "output_length": 1}\n'
      .. '{"timestamp": 5, "input_length": 2, "output_length": 1}\n{"timestamp": 9, "input_length": 3, "output_length": 1}'))
    assert.same({ { 2, 1, 3 }, { 0, 4, 4 }, 1 }, { column(t, "input"), column(t, "t_ms"), t.late })
    assert.matches("; 1 requests out of order, sorted by time$", tostring(t))
  end)

  local good = '{"timestamp": 5, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'
  for name, case in pairs {
    ["a count that is none"] = { '{"timestamp": 5, "input_length": 0, "output_length": 1, "hash_ids": []}',
      "input_length: got 0, wanted a whole number >= 1" },
    ["a missing field"] = { '{"timestamp": 5, "input_length": 3, "hash_ids": [1]}',
      "output_length: got nil, wanted a whole number >= 0" },
    ["a text for a number"] = { '{"timestamp": "5", "input_length": 3, "output_length": 1, "hash_ids": [1]}',
      'timestamp: got "5", wanted a whole number >= 0' },
    ["too few block ids"] = { '{"timestamp": 5, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
      "hash_ids: got a list of 1, wanted 2 ids, one for every 512 tokens of input_length 513" },
    ["no block ids"] = { '{"timestamp": 5, "input_length": 513, "output_length": 1}',
      "hash_ids: got nil, wanted 2 ids, one for every 512 tokens of input_length 513" },
    ["a block id that is none"] = { '{"timestamp": 5, "input_length": 513, "output_length": 1, "hash_ids": [1, 2.5]}',
      "hash_ids[2]: got 2.5, wanted a whole number >= 0" },
    ["a list where an object belongs"] = { "[1, 2]", "timestamp: got nil, wanted a whole number >= 0" },
    ["a request out of order"] = { '{"timestamp": 4, "input_length": 5, "output_length": 1, "hash_ids": [1]}',
      "earlier than the request before it; a trace stands in order of arrival" },
  } do
    it("refuses " .. name .. " with file and line, and reads nothing", function()
      local t, err = read(good .. "\n" .. case[1] .. "\n" .. good)
      assert.is_nil(t)
      assert.equal("FILE:3: " .. case[2], err)
    end)
  end

  it("refuses a line that is no JSON", function()
    local t, err = read(good .. '{"timestamp": 5,')
    assert.is_nil(t)
    assert.matches("^FILE:2: ", err)
  end)

  local header = HEADER .. "\n"
  for row, reason in pairs {
    ["2023-11-16 18:17:03,4808"] = "wanted 3 columns: " .. HEADER,
    ["2023-02-29 18:17:03,4808,1"] = 'TIMESTAMP: got "2023-02-29 18:17:03", wanted YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]',
    ["2023-11-16 24:00:00,4808,1"] = 'TIMESTAMP: got "2023-11-16 24:00:00", wanted YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]',
    ["2023-11-16 18:17:03.,4808,1"] = 'TIMESTAMP: got "2023-11-16 18:17:03.", wanted YYYY-MM-DD HH:MM:SS[.fraction][+HH:MM]',
    ["2023-11-16 18:17:03,-8,1"] = 'ContextTokens: got "-8", wanted a whole number >= 1',
    ["2023-11-16 18:17:03,0,1"] = "ContextTokens: got 0, wanted a whole number >= 1",
    ["2023-11-16 18:17:03,2147483648,1"] = "ContextTokens: got 2147483648, wanted at most 2147483647",
    ["2023-11-16 18:17:03,0x10,1"] = 'ContextTokens: got "0x10", wanted a whole number >= 1',
    ["2023-11-16 18:17:03,8,1e3"] = 'GeneratedTokens: got "1e3", wanted a whole number >= 0',
  } do
    it("refuses the row " .. row, function()
      local t, err = read(header .. "2023-11-16 18:17:02.5,8,1\n" .. row)
      assert.is_nil(t)
      assert.equal("FILE:3: " .. reason, err)
    end)
  end

  it("leaves bad lines out when asked to, counts them and says the first", function()
    local t = read(header .. "2023-11-16 18:17:02.5,8,1\n?\n2023-11-16 18:17:03.5,9,1\n!\n", { skip_bad = true })
    assert.same({ 8, 9 }, column(t, "input"))
    assert.equal(2, t.skipped)
    assert.matches(":3: wanted 3 columns", t.first_skipped)
    assert.matches("2 bad lines left out, the first: .*:3: wanted 3 columns", tostring(t))
  end)

  it("refuses an empty trace, a missing file and a folder", function()
    assert.equal("FILE: no request in it", (select(2, read(""))))
    assert.equal("FILE: no request in it", (select(2, read(header))))
    assert.equal("FILE: no request in it", (select(2, read(header .. "?\n", { skip_bad = true }))))
    assert.equal("/no/such/file: No such file or directory", (select(2, trace.read("/no/such/file"))))
    assert.equal("/: Is a directory", (select(2, trace.read("/"))))
  end)

  it("refuses an unknown option by name", function()
    local ok, err = pcall(function() trace.read(path, { skip_bat = true }) end)
    assert.is_false(ok)
    assert.matches('trace_spec%.lua:%d+: trace%.read: unknown option "skip_bat"; did you mean "skip_bad"%?', err)
  end)

  -- Figures of the READMEs beside the traces, nearest-rank quantiles.
  local published = {
    { "mooncake/conversation_trace.jsonl", "mooncake", 12031, 3537,
      { 6909, 27367, 85401, 126195 }, { 2470, 19012, 71941 }, 37.4 },
    { "mooncake/synthetic_trace.jsonl", "mooncake", 3993, 1022,
      { 11587, 38615, 66458, 191378 }, { 374, 19177, 49899 }, 65.1 },
    { "azure-llm-2023/AzureLLMInferenceTrace_code.csv", "azure", 8819, 57 * 60,
      { 1469, 5194, 7436, 7437 }, { 1469, 5194, 7436 }, 0 },
    { "azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "azure", 19366, 58 * 60,
      { 1020, 2735, 4142, 14050 }, { 1020, 2735, 4142 }, 0 },
  }
  for _, known in ipairs(published) do
    local name, format, rows, span, input, uncached, hit = unpack(known)
    if DATA then
      it("finds the published figures of " .. name, function()
        local t = assert(trace.read(DATA .. "/" .. name))
        assert.equal(format, t.format)
        assert.equal(rows, #t.requests)
        assert.is_true(math.abs(t.requests[rows].t_ms / 1e3 - span) < 60)
        for i, q in ipairs { 0.5, 0.9, 0.99, 1 } do
          assert.equal(input[i], t:quantile("input", q))
          if q < 1 then assert.equal(uncached[i], t:quantile("uncached", q)) end
        end
        assert.equal(("%.1f"):format(hit), ("%.1f"):format(100 * (1 - t:total("uncached") / t:total("input"))))
      end)
    else
      pending(("finds the published figures of %s: FEWHEAD_TRACES names no folder"):format(name))
    end
  end
end)

describe("trace.chunks", function()
  -- A trace of requests { t_ms, tokens }, in the Azure form.
  local function of(requests)
    local lines = { HEADER }
    for i, request in ipairs(requests) do
      lines[i + 1] = ("2023-11-16 18:17:%02d.%03d,%d,1"):format(math.floor(request[1] / 1000), request[1] % 1000, request[2])
    end
    return (read(table.concat(lines, "\n")))
  end

  local function sizes(chunks)
    local list = {}
    for i, chunk in ipairs(chunks.counts) do list[i] = ("%dx%d"):format(chunk.count, chunk.s_q) end
    return table.concat(list, " ")
  end

  it("packs what waits, in order of arrival, up to max_tokens", function()
    -- At time 0 two requests wait: 70 + 30 of the 50; the third arrives while the first chunk runs and joins the rest.
    local t = of { { 0, 70 }, { 0, 50 }, { 500, 40 } }
    local chunks = trace.chunks(t, { max_tokens = 100, tokens_per_s = 100, load = false })
    assert.equal("1x60 1x100", sizes(chunks))
    assert.equal(2, chunks.chunks)
    assert.equal(160, chunks.rows)
    assert.equal(3, chunks.requests)
  end)

  it("does not wait for what has not arrived", function()
    local t = of { { 0, 70 }, { 701, 50 }, { 2000, 40 } }
    assert.equal("1x40 1x50 1x70", sizes(trace.chunks(t, { max_tokens = 100, tokens_per_s = 100, load = false })))
    t = of { { 0, 70 }, { 700, 50 }, { 1200, 40 } } -- each arrives as the one before is done
    assert.equal("1x40 1x50 1x70", sizes(trace.chunks(t, { max_tokens = 100, tokens_per_s = 100, load = false })))
  end)

  it("cuts a long prompt into full chunks and a tail", function()
    assert.equal("1x8 2x8192", sizes(trace.chunks(of { { 0, 16392 } })))
    assert.equal("1x136 2x8128", sizes(trace.chunks(of { { 0, 16392 } }, { decode_rows = 64 })))
  end)

  it("takes every request alone when not packing", function()
    local t = of { { 0, 70 }, { 0, 250 } }
    assert.equal("1x50 1x70 2x100", sizes(trace.chunks(t, { max_tokens = 100, pack = false })))
  end)

  it("stretches the clock to the load asked for", function()
    -- 160 tokens over 1 s at 100 a second: a load of 0.5 needs 3.2 s, so the second request finds the engine idle.
    local t = of { { 0, 80 }, { 500, 40 }, { 1000, 40 } }
    assert.equal("2x40 1x80", sizes(trace.chunks(t, { max_tokens = 100, tokens_per_s = 100, load = 0.5 })))
    assert.equal("2x80", sizes(trace.chunks(t, { max_tokens = 100, tokens_per_s = 100, load = 2 })))
    assert.matches("arrivals stretched x3%.20 to a load of 0%.50", trace.chunks(t, { tokens_per_s = 100, load = 0.5 }).model)
  end)

  it("computes the uncached tokens only, or all with prefix_cache = false", function()
    local t = read(MOONCAKE)
    assert.equal(1607, trace.chunks(t).rows)
    assert.equal(4166, trace.chunks(t, { prefix_cache = false }).rows)
  end)

  it("says its assumptions", function()
    assert.equal("2 chunks, 16392 rows of 1 requests: one engine, first come first served, requests packed together, 10176 "
      .. "prompt tokens/s, arrivals as recorded, no prefix cache, at most 10000 rows a chunk (10001 less 1 for running decodes)",
      tostring(trace.chunks(of { { 0, 16392 } }, { max_tokens = 10001, decode_rows = 1, load = false, prefix_cache = false })))
    assert.equal("every request alone, infinite prefix cache, at most 8192 rows a chunk",
      trace.chunks(of { { 0, 1 } }, { pack = false }).model)
  end)

  it("refuses wrong options on the caller's line", function()
    local t = of { { 0, 1 } }
    local function refusal(options)
      local ok, err = pcall(function() trace.chunks(t, options) end)
      assert.is_false(ok)
      return (err:match("trace_spec%.lua:%d+: (.*)$"))
    end
    assert.equal("trace.chunks: max_tokens: got 0, wanted a whole number in 1 .. 2147483647", refusal { max_tokens = 0 })
    assert.equal("trace.chunks: decode_rows: got 10, wanted a whole number in 0 .. 9",
      refusal { max_tokens = 10, decode_rows = 10 })
    assert.equal("trace.chunks: load: has no effect without pack true", refusal { load = 0.5, pack = false })
    assert.equal("trace.chunks: load: got 0, wanted a finite number in 1e-06 .. 1000000", refusal { load = 0 })
    local ok, err = pcall(function() trace.chunks({}) end)
    assert.is_false(ok)
    assert.matches("trace_spec%.lua:%d+: trace%.chunks: trace: got {}, wanted what trace%.read returned$", err)
  end)
end)
