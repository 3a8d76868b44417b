--- Bundle: what a person with another device sends us: a run, its gate table and what the device is, in one tar file.
--
--     print(assert(fh.bundle("results/local/latest", { tar = "run.tar" })))
--
-- The archive holds records.jsonl, run.json, fingerprint.json and, where the run has a gate, gates.json and gates.env. It has the
-- words of the command and the device's name, no name of a host, user or folder of this machine. What `fewhead bundle` does.
local args = require "fewhead.base.arguments"
local file = require "fewhead.record.file"
local gate = require "fewhead.decide.gate"
local gate_table = require "fewhead.decide.gate_table"
local json = require "fewhead.base.json"
local posix = require "fewhead.base.posix"
local records = require "fewhead.record.record"
local shell = require "fewhead.base.shell"
local store = require "fewhead.record.store"

local M = {}

local Bundle = { __name = "bundle" }
Bundle.__index = Bundle
M.class = Bundle -- fewhead.report.result gives it print

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

--- Pack a run. run: its folder, or a folder of runs, whose newest sweep is taken. options: tar, the file to write (default: the
-- run's name with .tar). Returns { tar =, members = the names in it, name = the run's }, which prints as one line; nil, err.
function M.run(run, options)
  args.string("bundle: run", run)
  local o = args.options("bundle", options, { "tar" })
  local folder, err = store.folder(run, store.is_sweep)
  if not folder then return nil, err end
  local texts, head = made_of(folder)
  if not texts then return nil, head end
  for _, member in ipairs { "records.jsonl", "run.json" } do texts[member] = assert(file.read(folder .. "/" .. member)) end
  local self = setmetatable({ name = head.name or "run", members = { "records.jsonl", "run.json", "fingerprint.json" } }, Bundle)
  for _, member in ipairs(texts["gates.json"] and { "gates.json", "gates.env" } or {}) do
    self.members[#self.members + 1] = member
  end
  self.tar = o.tar or self.name .. ".tar"
  local ok
  ok, err = pack(self.tar, self.name, texts)
  if not ok then return nil, err end
  return self
end

function Bundle:__tostring() return ("%s: %s"):format(self.tar, table.concat(self.members, ", ")) end

-- A tail call: errors blame the caller, as for M.run itself.
return setmetatable(M, { __call = function(_, ...) return M.run(...) end })
