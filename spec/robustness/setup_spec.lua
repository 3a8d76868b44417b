-- make setup on a machine where another program installs packages, and make install under a umask that hides everything.
local helper = require "spec.helper"
local process = require "spec.process"

local BUSY = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (unattended-upgr)"

-- Runs tools/setup.sh where luajit and its modules are missing, with this apt-get; `sleep` takes no time. HERE/ is a folder.
local function setup(apt_get)
  local folder = helper.folder()
  local commands = {
    cc = "exit 0", id = "echo 0", sleep = 'echo "sleep $*" >>HERE/calls',
    ["apt-get"] = 'echo "apt-get $1" >>HERE/calls; ' .. apt_get,
  }
  for _, name in ipairs { "sh", "env", "ls", "chmod", "wc" } do
    helper.shell(("ln -s $(command -v %s) %s%s"):format(name, folder, name))
  end
  for name, script in pairs(commands) do
    process.write(folder .. name, "#!/bin/sh\n" .. script:gsub("HERE/", folder))
    helper.shell("chmod +x " .. folder .. name)
  end
  local status, out, err = process.run(("PATH=%s; exec tools/setup.sh run"):format(folder:sub(1, -2)))
  local calls = process.read(folder .. "calls")
  process.remove(folder)
  local waits, tries = select(2, calls:gsub("sleep", "")), select(2, calls:gsub("apt%-get install", ""))
  return { status, out, err }, waits, tries
end

local INSTALLED = [[printf '#!/bin/sh\n' >HERE/luajit; chmod +x HERE/luajit]]

describe("tools/setup.sh #robustness", function()
  it("waits for a held lock, says so once, and goes on", function()
    local busy_twice = ([[if [ "$1" = install ]; then echo x >>HERE/tries
      if [ "$(wc -l <HERE/tries)" -le 2 ]; then echo '%s' >&2; exit 100; fi; %s; fi]]):format(BUSY, INSTALLED)
    local said, waits, tries = setup(busy_twice)
    assert.same({ 0, "fewhead: installing luajit lua-cjson lua-luv libxxhash0\n",
      "fewhead: another program is installing packages; waiting for it, 600 s at most\n" }, said)
    assert.same({ 2, 3 }, { waits, tries })
  end)

  it("waits for each kind of lock that apt names", function()
    for _, text in ipairs { BUSY, "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process "
      .. "using it?", "E: Unable to lock directory /var/lib/apt/lists/" } do
      local once = ([[if [ "$1" = install ]; then
        if [ ! -e HERE/tried ]; then echo >HERE/tried; echo '%s' >&2; exit 100; fi; %s; fi]]):format(text, INSTALLED)
      local said, waits = setup(once)
      assert.same({ 0, 1 }, { said[1], waits })
    end
  end)

  it("ends with a word where the lock is never let go", function()
    local said, waits = setup(("echo '%s' >&2; exit 100"):format(BUSY))
    assert.equal(1, said[1])
    assert.matches("another program is still installing packages after 600 s; run this again when it is done\n", said[3], 1, true)
    assert.is_true(waits >= 120 and waits <= 240)
  end)

  it("does not wait for another failure, and shows it", function()
    local said, waits = setup("echo 'E: no such package' >&2; exit 100")
    assert.same({ 1, 0 }, { said[1], waits })
    assert.matches("^E: no such package\n", said[3])
  end)
end)

describe("make install #robustness", function()
  it("leaves everything readable for everybody under umask 077", function()
    local folder = helper.folder()
    helper.shell(("mkdir -p %scopy/build && cd %s && cp -pR Makefile fewhead fewhead.pc.in lib kernels peers lua experiments "
      .. "results %scopy && cp -pR build/obj build/gen build/*.so* %scopy/build"):format(folder, process.root, folder, folder))
    local status, _, err = process.run(("umask 077; make -s -C %scopy install CUDA=0 DESTDIR=%sstage PREFIX=/usr"):format(folder,
      folder))
    assert.same({ 0, "" }, { status, err })
    local found = helper.shell(("cd %sstage/usr; find . ! -type l ! -perm -o=r; find . -type d ! -perm -o=x"):format(folder))
    local files = tonumber((helper.shell(("find %sstage/usr -type f | wc -l"):format(folder))))
    local programs = helper.shell(("cd %sstage/usr && find . -type f -perm -o=x | sort"):format(folder))
    process.remove(folder)
    assert.equal("", found)
    assert.is_true(files > 50)
    assert.equal(table.concat({ "./bin/fewhead", "./lib/libfewhead.so", "./lib/libfewhead_flashmla.so",
      "./share/fewhead/experiments/cluster/sweep.sbatch" }, "\n"), programs)
  end)
end)
