// What is said when a file of weights is cut short while it is mapped.
//
// A read of a page behind a file's end is a fault of the processor, SIGBUS, and so is one that the
// disk fails: no function returns an error, and by default the process ends without a word. Nothing
// can be read in the page's stead, so it ends all the same; but it says which file it was.
#pragma once

namespace monolane {

// Once for each process, unless it has a handler of its own for SIGBUS.
void tell_of_file_faults();

}  // namespace monolane
