-- Would packing pay? Reads captured index lists, counts what neighbouring rows share and says what that is worth on a GPU, which
-- need not be here.
--
--   ./fewhead run experiments/overlap.lua --indices layer7.npy
--   ./fewhead run experiments/overlap.lua --indices layer7.npy --cu-seqlens-q 0,1024,8192 --shared 4
--   ./fewhead run experiments/overlap.lua --pattern local --keep 0.8 --ratio 1       drawn lists, to try it
local fh = require "fewhead"

-- An option of a case that has effect with the patterns that take it.
local function of_pattern(key, changes)
  changes.with = { pattern = fh.pattern.taking(key) }
  return fh.option.like(fh.case.rows.by_key[key], changes)
end

local opt = fh.options {
  name = "overlap",
  about = [[
Union factors of captured index lists, and what each path is expected to take on a GPU.

To capture: where the engine calls flash_mla_sparse_fwd(q, kv, indices, ..) for prefill, save what it passes, of one chunk and one
layer (vLLM: vllm/v1/attention/backends/mla/flashmla_sparse.py; SGLang: python/sglang/srt/layers/attention/nsa_backend.py):

    numpy.save("layer7.npy", indices.cpu().numpy().astype("int32"))              # [s_q, topk] or [s_q, 1, topk]
    numpy.save("length7.npy", topk_length.cpu().numpy().astype("int32"))         # [s_q], where the call has one

Raw int32 works too: FILE and FILE.json beside it with {"dtype": "int32", "shape": [s_q, topk]}.]],
  options = {
    "indices",
    { "--topk-length", "FILE", "keys of each row that count, int32 .npy [s_q] (default: what the JSON header says, else all)",
      with = { indices = true } },
    { "--cu-seqlens-q", "LIST", "first row of each request and s_q, such as 0,1024,8192 (default: one request)" },
    { "--pattern", "NAME", "drawn lists in place of captured ones", choices = fh.pattern.drawn },
    { "s_q", "INTEGER", "rows: the first so many of a file; of a pattern 2048 unless said" },
    of_pattern("keep", {}), of_pattern("ratio", {}),
    of_pattern("prior", { [2] = "INTEGER", [3] = "rows of the prompt before the chunk (default: the prompt is 8192 rows long)" }),
    "preset",
    { "--shared", "INTEGER", "layers that use one list, and so pay for its plan together", default = 1, lo = 1 },
    { "--on", "MACHINE", "whose times: a folder of results/ with a packed.jsonl, such a file, cpu or cuda:N",
      default = "nvidia-h200" },
  },
}:read(arg)

local function fail(status, message) fh.cli.exit(status, "overlap: " .. message) end
local function need(value, err)
  if not value then fail(fh.cli.FAILED, err) end
  return value
end

if not opt.indices and not opt.pattern then
  fail(fh.cli.USAGE, "no lists, wanted --indices FILE or --pattern NAME (--help lists the options)")
end

local preset = fh.preset.get(opt.preset) -- neither lists nor d_qk depend on how many ranks there are

-- ---- Lists ------------------------------------------------------------------------------------------------------------------

local function captured()
  local lists = need(fh.pattern.make("file", { indices = opt.indices, s_q = opt.s_q }))
  if not opt.topk_length then return lists end
  local lengths, rows = need(fh.npy.load(opt.topk_length)), need(fh.npy.load(opt.indices)).shape[1]
  if #lengths.shape ~= 1 or lengths.shape[1] ~= rows then
    fail(fh.cli.FAILED, ("--topk-length: got %s of shape {%s}, wanted {%d}: one number for each row of --indices"):format(
      opt.topk_length, table.concat(lengths.shape, ", "), rows))
  end
  lists.topk_length = lengths.data
  return lists
end

local function drawn()
  local case = fh.case {
    preset = preset.name, pattern = opt.pattern, s_q = opt.s_q or 2048, keep = opt.keep, ratio = opt.ratio, prior = opt.prior,
  }
  return case:lists()
end

local lists = opt.indices and captured() or drawn()
local offsets
if opt.cu_seqlens_q then
  offsets = {}
  for i, text in ipairs(opt.cu_seqlens_q) do
    offsets[i] = text:find("^%d+$") and tonumber(text)
      or fail(fh.cli.USAGE, ("--cu-seqlens-q: got %s, wanted whole numbers, 0 first and s_q last"):format(text))
  end
end

-- ---- What is shared, and what that is worth ---------------------------------------------------------------------------------

local machine = need(fh.machine.open(opt.on))
local rows = need(fh.overlap.measure(lists, { cu_seqlens_q = offsets }))
if rows[1].keys == 0 then
  local whose = opt.indices or "pattern " .. opt.pattern
  fail(fh.cli.FAILED, whose .. ": no list names a valid KV row, so there is nothing to share")
end
local worst, missing = 0, nil
for _, row in ipairs(rows) do
  row.h_q = 64 / row.group
  local choice, us = machine:predict(row, row.h_q, preset.d_qk, opt.shared)
  if choice then
    for name, time in pairs(us) do row[name] = time end
    row.choice, row.gain = choice, us.padded / (us[choice] + (fh.path.get(choice).wants_plan and us.plan / opt.shared or 0))
    worst = math.max(worst, machine:error(row.h_q, preset.d_qk, lists.s_q) or 0)
  else missing = us end
end

print(("%s: %d rows%s, topk %d, %.1f keys a row, KV rows 0 .. %d"):format(opt.indices or "pattern " .. opt.pattern, lists.s_q,
  offsets and (" of %d requests"):format(#offsets - 1) or "", lists.topk, rows[1].keys / lists.s_q, lists.s_kv - 1))
local columns = {
  { key = "group", title = "rows a group" }, { key = "union", title = "union / one list", format = "%.2f" },
  { key = "dedup", format = "%.2f" }, { key = "h_q", title = "for h_q" },
}
for _, path in ipairs(fh.path.candidates()) do columns[#columns + 1] = { key = path, title = path .. " us", format = "%.0f" } end
columns[#columns + 1] = { key = "plan", title = "plan us", format = "%.0f" }
columns[#columns + 1] = { key = "choice", align = "left" }
columns[#columns + 1] = { key = "gain", title = "padded / choice", format = "%.2f" }
print(fh.table.text(rows, columns))
print("union / one list: KV rows that a group needs, beside those of one row; dedup: rows referenced over distinct rows")
print(("us: expected on %s%s; the choice pays for %s"):format(tostring(machine),
  worst > 0 and (" (the fits are off by %.0f %% at most, root mean square)"):format(100 * worst) or "",
  opt.shared > 1 and ("1/%d of the plan"):format(opt.shared) or "the plan"))
if missing then print("-: " .. missing) end
