package metrics

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// fresh is how long scrapes share one reading of the status. Reading and printing it takes about
// 5 ms of CPU time, so a flood of scrapes takes 5 per cent of a processor.
const fresh = 100 * time.Millisecond

// page serves the metrics. A scrape of a healthy daemon has about 60 KB.
type page struct {
	gather prometheus.Gatherer

	mu       sync.Mutex
	at       time.Time // of families and printed
	families []*dto.MetricFamily
	printed  map[expfmt.Format][]byte // a few: formats times the ways to escape names
}

// formats are those that the page has, the preferred one first.
var formats = []expfmt.Format{expfmt.NewFormat(expfmt.TypeOpenMetrics), expfmt.NewFormat(expfmt.TypeTextPlain)}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	format := expfmt.NegotiateAccept(r.Header, formats...)
	text, err := p.print(format)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(format))
	_, _ = w.Write(text) // the client is gone
}

// print returns the metrics in a format.
func (p *page) print(format expfmt.Format) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.printed == nil || now.Sub(p.at) >= fresh {
		families, err := p.gather.Gather()
		if err != nil && len(families) == 0 { // else those that are consistent
			return nil, err
		}
		p.at, p.families, p.printed = now, families, map[expfmt.Format][]byte{}
	}
	if text, ok := p.printed[format]; ok {
		return text, nil
	}
	var out bytes.Buffer
	enc := expfmt.NewEncoder(&out, format)
	var err error
	for _, f := range p.families {
		err = errors.Join(err, enc.Encode(f))
	}
	if end, ok := enc.(io.Closer); ok { // OpenMetrics has an end
		err = errors.Join(err, end.Close())
	}
	if err == nil {
		p.printed[format] = out.Bytes()
	}
	return out.Bytes(), err
}
