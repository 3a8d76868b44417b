--- Bundle: what a person with another device sends us: a run, its gate table and what the device is, in one tar file. Behind
-- `fewhead bundle`.
local exit = require "fewhead.cli.exit"
local file = require "fewhead.record.file"
local gate = require "fewhead.decide.gate"
local gate_table = require "fewhead.decide.gate_table"
local json = require "fewhead.base.json"
local options = require "fewhead.cli.options"
local posix = require "fewhead.base.posix"
local records = require "fewhead.record.record"
local store = require "fewhead.record.store"
local shell = require "fewhead.base.shell"

local M = {}

local parser = options.new {
  name = "bundle", usage = "fewhead bundle [options] [RUN]",
  about = "Packs a run (default: the latest in results/local), its gate table and the fingerprint of build and device into\n"
    .. "NAME.tar. It holds the words of the command and the device's name, no name of a host, user or folder of this machine.",
  arguments = { 0, 1 },
  options = { { "--tar", "FILE", "the file to write (default: the run's name with .tar)", kind = "TEXT" } },
}

-- Members of the archive beside records.jsonl and run.json, for a run's folder: name -> text. nil, error.
local function made_of(folder)
  local head, err = store.head(folder)
  if not head then return nil, err end
  local list
  list, err = records.read(folder .. "/records.jsonl")
  if not list then return nil, err end
  local texts = { ["fingerprint.json"] = json.encode(head.fingerprint) .. "\n" }
  local fitted = gate.fit(list)
  if fitted then
    local made = gate_table.from(fitted.curves, { run = list[1].run, noise_floor = head.noise_floor })
    texts["gates.json"], texts["gates.env"] = json.encode(made) .. "\n", gate_table.env_lines(made) .. "\n"
  end
  return texts, head
end

local function read(path)
  local handle = assert(io.open(path, "rb"))
  local text = handle:read("*a")
  handle:close()
  return text
end

-- Write the archive: a folder NAME with these files. true | nil, error.
local function pack(tar, name, texts)
  local scratch = os.tmpname()
  os.remove(scratch)
  local ok, err = posix.make_folders(("%s/%s/x"):format(scratch, name))
  for member, text in pairs(texts) do
    if ok then ok, err = file.write(("%s/%s/%s"):format(scratch, name, member), text) end
  end
  if ok then
    local command = "tar -C %s --sort=name --owner=0 --group=0 --numeric-owner -cf %s %s"
    ok = os.execute(command:format(shell.quote(scratch), shell.quote(tar), shell.quote(name))) == 0
    err = "tar could not write " .. tar
  end
  os.execute("rm -rf " .. shell.quote(scratch))
  return ok, err
end

--- Returns the exit status; ends with 1 and one line where there is no run or the file cannot be written.
function M.main(argv)
  local opt = parser:read(argv)
  local function need(value, err)
    if not value then exit.with(exit.FAILED, "bundle: " .. tostring(err)) end
    return value
  end
  local folder = need(store.folder(opt[1] or "results/local"))
  local texts, head = made_of(folder)
  need(texts, head)
  for _, member in ipairs { "records.jsonl", "run.json" } do texts[member] = read(folder .. "/" .. member) end
  local name = head.name or "run"
  local tar = opt.tar or name .. ".tar"
  need(pack(tar, name, texts))
  print(("%s: records.jsonl, run.json, fingerprint.json%s"):format(tar, texts["gates.json"] and ", gates.json, gates.env" or ""))
  return 0
end

return M
