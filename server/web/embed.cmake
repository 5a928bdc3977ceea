# cmake -DFOLDER=... -DOUTPUT=... -P embed.cmake: puts style and scripts into index.html and writes it as a
# C++ source that defines kWebPageText (web_page.cc).
file(READ ${FOLDER}/index.html page)
file(READ ${FOLDER}/style.css style)
set(script "'use strict';\n")
foreach(part markdown chat live views)
  file(READ ${FOLDER}/${part}.js source)
  string(APPEND script "${source}")
endforeach()
string(REPLACE "/*STYLE*/" "${style}" page "${page}")
string(REPLACE "/*SCRIPT*/" "${script}" page "${page}")
# A raw string: nothing in it needs an escape as long as the delimiter is not used.
file(WRITE ${OUTPUT} "extern const char kWebPageText[];\nconst char kWebPageText[] = R\"heddle(${page})heddle\";\n")
