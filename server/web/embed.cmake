# cmake -DFOLDER=... -DOUTPUT=... -DSTYLES=a,b -DSCRIPTS=a,b -P embed.cmake: puts styles and scripts into index.html and
# writes it as a C++ source that defines kWebPageText (web_page.cc).
#
# The scripts are modules: editors, linters and tests read them as such. In the page each becomes a function that is called
# once, in the order of SCRIPTS, and returns what it exports, so that one document with one hash holds them all:
#   import {a, b} from './x.js';    const {a, b} = module_x;
#   import * as x from './x.js';    const x = module_x;
#   export const a = ...            const a = ...       and  return {a};
string(REPLACE "," ";" styles "${STYLES}")
string(REPLACE "," ";" scripts "${SCRIPTS}")
file(READ ${FOLDER}/index.html page)
set(style "")
foreach(part ${styles})
  file(READ ${FOLDER}/${part} source)
  string(APPEND style "${source}")
endforeach()
set(script "'use strict';\n")
foreach(part ${scripts})
  file(READ ${FOLDER}/${part} source)
  set(source "\n${source}")
  string(REGEX MATCHALL "\nexport (async )?(function[*]?|const|class) [A-Za-z0-9_]+" exported "${source}")
  string(REGEX REPLACE "\nexport (async )?(function[*]?|const|class) " "" names "${exported}")
  string(REPLACE ";" ", " names "${names}")
  string(REGEX REPLACE "\nimport ({[^}]*}) from './([a-z]+)[.]js';" "\nconst \\1 = module_\\2;" source "${source}")
  string(REGEX REPLACE "\nimport [*] as ([a-z]+) from './([a-z]+)[.]js';" "\nconst \\1 = module_\\2;" source "${source}")
  string(REGEX REPLACE "\nexport " "\n" source "${source}")
  string(REGEX REPLACE "[.]js$" "" name "${part}")
  string(APPEND script "const module_${name} = (() => {${source}return {${names}};\n})();\n")
endforeach()
string(REPLACE "/*STYLE*/" "${style}" page "${page}")
string(REPLACE "/*SCRIPT*/" "${script}" page "${page}")
# A raw string: nothing in it needs an escape as long as the delimiter is not used.
file(WRITE ${OUTPUT} "extern const char kWebPageText[];\nconst char kWebPageText[] = R\"heddle(${page})heddle\";\n")
