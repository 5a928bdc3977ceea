// The fields of POST /v1/batches and of the queries of both lists.
// Constants; any thread.
#pragma once

#include "server/request/fields.h"

namespace heddle::server::fields {

inline constexpr Field kExpiresAfter[] = {
    {"anchor", kString, 0, 64, "", "created_at", true},
    {"seconds", kInteger, 3600, 2592000, "", "an hour to 30 days", true},
};

inline constexpr Field kBatch[] = {
    {"input_file_id", kString, 1, 128, "", "a file with a request per line", true},
    {"endpoint", kString, 1, 128, "",
     "/v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings", true},
    {"completion_window", kString, 1, 16, "",
     "how long the batch may take: a number and s, m, h or d, as 24h; at most 30d", true},
    {"metadata", kObject, 0, 16, "{}", "given back"},
    {"output_expires_after", kObject, 0, kInfinity, "", "when the files of results are deleted",
     false, kExpiresAfter},
};

inline constexpr Field kFileQuery[] = {
    {"purpose", kString, 0, 64, "", "only files of this purpose"},
    {"limit", kInteger, 1, 10000, "10000", "files on a page at most"},
    {"order", kString, 0, 64, "desc", "desc: the newest first; asc: the oldest first"},
    {"after", kString, 0, 128, "", "id of the last file of the page before"},
};

inline constexpr Field kBatchQuery[] = {
    {"limit", kInteger, 1, 100, "20", "batches on a page at most"},
    {"after", kString, 0, 128, "", "id of the last batch of the page before"},
};

// The parts of an upload.
inline constexpr Field kUpload[] = {
    {"file", kString, 0, kInfinity, "", "its content, with a name", true},
    {"purpose", kString, 1, 64, "", "batch, or what else it is for", true},
    {"expires_after[anchor]", kString, 0, 64, "", "created_at"},
    {"expires_after[seconds]", kInteger, 3600, 2592000, "(never)", "an hour to 30 days"},
};

}  // namespace heddle::server::fields
