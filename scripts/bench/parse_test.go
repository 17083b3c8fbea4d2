package main

import (
	"testing"
	"time"
)

func TestParseIperf(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       received
		err        string
	}{
		{
			name: "TCP", // iperf3 3.12, shortened
			text: `{"start":{"version":"iperf 3.12"},"intervals":[],"end":{"streams":[{}],
				"sum_sent":{"seconds":1.005243,"bytes":1992818688,"sender":true},
				"sum_received":{"start":0,"end":1.25,"seconds":1.25,"bytes":2000000000,"bits_per_second":12800000000,"sender":true}}}`,
			want: received{Bytes: 2_000_000_000, Seconds: 1.25},
		},
		{
			name: "UDP: lost datagrams do not count",
			text: `{"end":{"sum":{"seconds":1.00074,"bytes":12826240,"lost_packets":23598,"packets":200410},
				"sum_received":{"seconds":1.00074,"bytes":11315904,"lost_packets":23598,"packets":200409}}}`,
			want: received{Bytes: 11_315_904, Seconds: 1.00074},
		},
		{
			name: "no server, with exit status 0",
			text: `{"end":{},"error":"unable to connect to server: No route to host"}`,
			err:  "iperf3: unable to connect to server: No route to host",
		},
		{name: "nothing arrived", text: `{"end":{"sum_received":{"seconds":1,"bytes":0}}}`, err: "iperf3: nothing arrived"},
		{name: "no time", text: `{"end":{"sum_received":{"bytes":1}}}`, err: "iperf3: nothing arrived"},
		{name: "cut", text: `{"end":`, err: "the output of iperf3: unexpected end of JSON input"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parseIperf([]byte(c.text))
			if got != c.want || message(err) != c.err {
				t.Errorf("%+v, %v; want %+v, %s", got, err, c.want, c.err)
			}
		})
	}
	if got := (received{Bytes: 2_000_000_000, Seconds: 1.25}).gbits(); got != 12.8 {
		t.Errorf("%v Gb/s, want 12.8", got)
	}
}

// sockperfOutput is that of sockperf 3.7, shortened, with the colours that it also sends to
// pipes.
const sockperfOutput = "sockperf: \x1b[2;35m====> avg-rtt=12.233 (std-dev=42.296)\x1b[0m\n" + `sockperf: Summary: Round trip is 12.233 usec
sockperf: ---> <MAX> observation = 5126.771
sockperf: ---> percentile 99.999 = 5126.771
sockperf: ---> percentile 99.900 =  170.807
sockperf: ---> percentile 99.000 =   35.258
sockperf: ---> percentile 90.000 =   12.007
sockperf: ---> percentile 50.000 =   10.797
sockperf: ---> <MIN> observation =    6.810
`

func TestParseSockperf(t *testing.T) {
	median, p99, err := parseSockperf(sockperfOutput)
	if median != 10.797 || p99 != 35.258 || err != nil {
		t.Errorf("%v, %v, %v; want 10.797, 35.258", median, p99, err)
	}
	for _, text := range []string{"", "sockperf: No messages were received from the server.", "percentile 50.000 = 10.797\n"} {
		if median, p99, err := parseSockperf(text); err == nil || median != 0 || p99 != 0 {
			t.Errorf("%q: %v, %v, %v; want an error", text, median, p99, err)
		}
	}
}

func TestParseStat(t *testing.T) {
	const after = " S 1 1 1 0 -1 4194560 1021 0 0 0 250 1075 7 9 20 0 9 0 8812 1270 881"
	for _, c := range []struct {
		text string
		want time.Duration
		err  string
	}{
		{"812 (ipoibd)" + after, 13250 * time.Millisecond, ""},
		{"812 (a) S 9 (b)" + after, 13250 * time.Millisecond, ""},
		{"812 (ipoibd) S 1 1 1", 0, "/proc/PID/stat has only 4 fields after the name"},
		{"", 0, "/proc/PID/stat has only 0 fields after the name"},
		{"812 (x) S 1 1 1 0 -1 4194560 1021 0 0 0 many 1075 7", 0, `user time in /proc/PID/stat: strconv.ParseInt: parsing "many": invalid syntax`},
		{"812 (x) S 1 1 1 0 -1 4194560 1021 0 0 0 250 more 7", 0, `system time in /proc/PID/stat: strconv.ParseInt: parsing "more": invalid syntax`},
	} {
		if got, err := parseStat(c.text); got != c.want || message(err) != c.err {
			t.Errorf("%q: %v, %v; want %v, %s", c.text, got, err, c.want, c.err)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
