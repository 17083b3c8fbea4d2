package metrics

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/cmd/ipoibd/internal/report"
)

// NewHandler serves /livez, /readyz and /metrics. Any goroutine may call status, which must not
// block.
func NewHandler(status func() report.Status) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", probe(status, diagnose.Hung))
	mux.HandleFunc("GET /readyz", probe(status, diagnose.NotReady))
	mux.Handle("GET /metrics", &page{gather: newRegistry(status)})
	return mux
}

func newRegistry(status func() report.Status) *prometheus.Registry {
	r := prometheus.NewRegistry()
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	r.MustRegister(collector{status}, collectors.NewGoCollector(), process)
	return r
}

// probe answers 200 unless problems returns any.
func probe(status func() report.Status, problems func(*report.Status) []diagnose.Unready) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		s := status()
		list := problems(&s)
		if len(list) == 0 {
			fmt.Fprintln(w, "ok")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, p := range list {
			fmt.Fprintln(w, p)
		}
	}
}
