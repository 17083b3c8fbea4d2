package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

const (
	// prometheusAddr is where Prometheus answers, in its host's namespace.
	prometheusAddr = "127.0.0.1:9090"
	// prometheusLimit bounds its start: a second of processor time, which takes ten times as long on a busy machine.
	prometheusLimit = time.Minute
)

// prometheus is Debian's Prometheus, which scrapes daemons every half second.
type prometheus struct {
	host     *host
	client   *http.Client
	expected map[string]*host // by alert
}

// prometheus starts Prometheus on a host, with the rules in alerts.yaml of dir.
func (h *host) prometheus(dir string, targets ...*host) *prometheus {
	h.tb.Helper()
	var addrs []string
	for _, target := range targets {
		addrs = append(addrs, target.metricsAddr())
	}
	list, err := json.Marshal(addrs)
	if err != nil {
		h.tb.Fatal(err)
	}
	file := filepath.Join(dir, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: 500ms, evaluation_interval: 500ms}\nrule_files: [alerts.yaml]\n"+
		"scrape_configs: [{job_name: ipoibd, static_configs: [{targets: %s}]}]\n", list)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		h.tb.Fatal(err)
	}
	log := &logBuffer{}
	cmd := h.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "tsdb"), "--web.listen-address="+prometheusAddr)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		h.tb.Fatalf("start prometheus: %v", err)
	}
	h.tb.Cleanup(func() {
		end(h.tb, cmd)
		if h.tb.Failed() {
			h.tb.Logf("log of prometheus:\n%s", log)
		}
	})
	p := &prometheus{host: h, expected: map[string]*host{}, client: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (conn net.Conn, err error) {
			h.Do(func() { conn, err = net.Dial("tcp", prometheusAddr) })
			return conn, err
		},
	}}}
	eventually(h.tb, prometheusLimit, "prometheus answers", func() bool {
		resp, err := p.client.Get("http://prometheus/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// series is the result of a query: labels, and values that are numbers.
type series struct {
	labels map[string]string
	values []float64
}

// query evaluates an expression for each half second since a time, and returns the series that
// have values.
func (p *prometheus) query(expr string, since time.Time) (out []series) {
	p.host.tb.Helper()
	at := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	resp, err := p.client.Get("http://prometheus/api/v1/query_range?" + url.Values{
		"query": {expr}, "start": {at(since)}, "end": {at(time.Now())}, "step": {"500ms"},
	}.Encode())
	if err != nil {
		p.host.tb.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err == nil {
		err = json.Unmarshal(text, &answer)
	}
	if err != nil || answer.Status != "success" {
		p.host.tb.Fatalf("%s: %v: %s", expr, err, text)
	}
	for _, r := range answer.Data.Result {
		s := series{labels: r.Metric}
		for _, v := range r.Values {
			if n, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64); err == nil && !math.IsNaN(n) {
				s.values = append(s.values, n)
			}
		}
		if len(s.values) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// firing returns the alerts that have fired since a time, each with its host's address.
func (p *prometheus) firing(since time.Time) (list []string) {
	p.host.tb.Helper()
	for _, s := range p.query(`ALERTS{alertstate="firing"}`, since) {
		if alert := s.labels["alertname"] + " " + s.labels["instance"]; !slices.Contains(list, alert) {
			list = append(list, alert)
		}
	}
	return list
}

// expect says that an alert will fire for a host.
func (p *prometheus) expect(alert string, h *host) { p.expected[alert] = h }

// requireNames requires that exactly these alerts are expected.
func (p *prometheus) requireNames(alerts []string) {
	p.host.tb.Helper()
	for _, name := range alerts {
		if p.expected[name] == nil {
			p.host.tb.Errorf("the test has no fault for the alert %s", name)
		}
	}
	if len(p.expected) != len(alerts) {
		p.host.tb.Errorf("%d alerts, and faults for %d", len(alerts), len(p.expected))
	}
}

// await waits until the alerts fire, each for the host that has the fault.
func (p *prometheus) await(alerts ...string) {
	p.host.tb.Helper()
	start := time.Now()
	for _, name := range alerts {
		want := p.awaited(name)
		for !slices.Contains(p.firing(start.Add(-alertLimit)), want) {
			if time.Since(start) > alertLimit {
				p.host.tb.Fatalf("%s has not fired; these have: %v\n%s", want, p.firing(start.Add(-alertLimit)), p.expected[name].describe())
			}
			time.Sleep(200 * time.Millisecond)
		}
		p.host.tb.Logf("%s after %s", want, time.Since(start).Round(100*time.Millisecond))
	}
}

// awaited is an alert with the address of the host that has the fault, as firing returns it.
func (p *prometheus) awaited(alert string) string {
	return alert + " " + p.expected[alert].metricsAddr()
}

// fires reports whether an alert has fired within the last minute for the host that has the fault.
func (p *prometheus) fires(alert string) bool {
	p.host.tb.Helper()
	return slices.Contains(p.firing(time.Now().Add(-time.Minute)), p.awaited(alert))
}

// awaitScrape waits until Prometheus has scraped a host since a time.
func (p *prometheus) awaitScrape(h *host, since time.Time) {
	p.host.tb.Helper()
	scraped := fmt.Sprintf("timestamp(up{instance=%q}) > %.3f and up == 1", h.metricsAddr(), float64(since.UnixMilli())/1000)
	eventually(p.host.tb, alertLimit, "prometheus scrapes "+h.metricsAddr(), func() bool { return len(p.query(scraped, since)) > 0 })
}
