--- What the launcher starts. Makes the modules beside it loadable from any folder, runs the command, leaves with its status.
--
--   luajit lua/fewhead/cli/main.lua info
local modules = arg[0]:match("^(.*)/fewhead/cli/main%.lua$")
if modules:find("[;?]") then
  io.stderr:write("fewhead: it lies in ", modules, ": Lua finds no modules in a folder with ; or ? in its name\n")
  os.exit(1)
end
package.path = modules .. "/?.lua;" .. modules .. "/?/init.lua;" .. package.path
-- true: close the state, so that finalizers run and devices are given back.
os.exit(require("fewhead.cli.cli").main(arg), true)
