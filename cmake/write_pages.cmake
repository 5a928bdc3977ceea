# cmake -DHEDDLE=... -DFOLDER=... -P write_pages.cmake: has the program write its manual pages, packed,
# and the completions for shells into a folder. They come from the table of options in config/.
file(MAKE_DIRECTORY ${FOLDER})
file(REMOVE_RECURSE ${FOLDER}/man1)
file(MAKE_DIRECTORY ${FOLDER}/man1)

# heddle's output for these arguments, in a file.
function(write file)
  execute_process(COMMAND ${HEDDLE} ${ARGN} OUTPUT_FILE ${FOLDER}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

write(heddle.bash --completion bash)
write(heddle.fish --completion fish)
write(_heddle --completion zsh)
write(man1/heddle.1 --man)
# heddle(1) refers to a page for each command.
file(READ ${FOLDER}/man1/heddle.1 page)
string(REGEX MATCHALL "heddle[^ ]-[a-z]+" references "${page}")
list(REMOVE_DUPLICATES references)
foreach(reference IN LISTS references)
  string(REGEX REPLACE ".*-" "" command ${reference})
  write(man1/heddle-${command}.1 --man ${command})
endforeach()

# Without the time of day, so that the same sources make the same package.
file(GLOB pages ${FOLDER}/man1/*.1)
execute_process(COMMAND gzip -9nf ${pages} COMMAND_ERROR_IS_FATAL ANY)
file(TOUCH ${FOLDER}/done)
