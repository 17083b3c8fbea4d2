package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// Streams as go test -json writes them, times left out.
const (
	passing = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"output","Package":"m/a","Test":"TestA","Output":"quiet\n"}
{"Action":"run","Package":"m/a","Test":"TestA/sub"}
{"Action":"pass","Package":"m/a","Test":"TestA/sub","Elapsed":0}
{"Action":"pass","Package":"m/a","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"m/a","Output":"PASS\n"}
{"Action":"pass","Package":"m/a","Elapsed":0.25}
`
	failing = `{"Action":"start","Package":"m/b"}
{"Action":"run","Package":"m/b","Test":"TestB"}
{"Action":"output","Package":"m/b","Test":"TestB","Output":"    b_test.go:7: got 1\n"}
{"Action":"fail","Package":"m/b","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"m/b","Output":"FAIL\n"}
{"Action":"fail","Package":"m/b","Elapsed":0.01}
`
	skipping = `{"Action":"start","Package":"m/c"}
{"Action":"run","Package":"m/c","Test":"TestC"}
{"Action":"output","Package":"m/c","Test":"TestC","Output":"    c_test.go:3: no disk\n"}
{"Action":"skip","Package":"m/c","Test":"TestC","Elapsed":0}
{"Action":"pass","Package":"m/c","Elapsed":0}
`
	noTestFiles = `{"Action":"start","Package":"m/d"}
{"Action":"output","Package":"m/d","Output":"?   \tm/d\t[no test files]\n"}
{"Action":"skip","Package":"m/d","Elapsed":0}
`
	notBuilding = `{"ImportPath":"m/e [m/e.test]","Action":"build-output","Output":"# m/e [m/e.test]\n"}
{"ImportPath":"m/e [m/e.test]","Action":"build-output","Output":"e_test.go:5:1: undefined: x\n"}
{"ImportPath":"m/e [m/e.test]","Action":"build-fail"}
{"Action":"start","Package":"m/e"}
{"Action":"output","Package":"m/e","Output":"FAIL\tm/e [build failed]\n"}
{"Action":"fail","Package":"m/e","Elapsed":0,"FailedBuild":"m/e [m/e.test]"}
`
	dying = `{"Action":"start","Package":"m/f"}
{"Action":"run","Package":"m/f","Test":"TestF"}
{"Action":"pass","Package":"m/f","Test":"TestF","Elapsed":0}
{"Action":"output","Package":"m/f","Output":"leak: 3 goroutines\n"}
{"Action":"fail","Package":"m/f","Elapsed":0}
`
	killed = `{"Action":"start","Package":"m/g"}
{"Action":"run","Package":"m/g","Test":"TestG"}
{"Action":"output","Package":"m/g","Test":"TestG","Output":"waiting\n"}
`
	timingOut = `{"Action":"start","Package":"m/i"}
{"Action":"run","Package":"m/i","Test":"TestI"}
{"Action":"output","Package":"m/i","Test":"TestI","Output":"panic: test timed out after 3s\n"}
{"Action":"output","Package":"m/i","Output":"FAIL\tm/i\t3.006s\n"}
{"Action":"fail","Package":"m/i","Elapsed":3.006}
`
	// A command under go tool test2json, as the linters are run.
	clean = `{"Action":"start","Package":"lint"}
{"Action":"output","Package":"lint","Output":"0 issues.\n"}
{"Action":"pass","Package":"lint","Elapsed":1.5}
`
	unclean = `{"Action":"start","Package":"lint"}
{"Action":"output","Package":"lint","Output":"a.go:1: x is unused\n"}
{"Action":"fail","Package":"lint","Elapsed":1.5}
`
	killedEarly = `{"Action":"start","Package":"m/h"}
`
)

func TestSummary(t *testing.T) {
	tests := []struct {
		name, in string
		noSkips  bool
		want     string
		err      error
	}{
		{
			name: "passing", in: passing,
			want: `ok    m/a                                              2 tests     0.25s
2 passed, 0 failed, 0 skipped
`,
		},
		{
			name: "a failure shows its output", in: passing + failing, err: errFailed,
			want: `ok    m/a                                              2 tests     0.25s
FAIL  m/b TestB
          b_test.go:7: got 1
FAIL  m/b                                              1 tests     0.01s
2 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "a skip shows its reason", in: passing + skipping,
			want: `ok    m/a                                              2 tests     0.25s
SKIP  m/c TestC
          c_test.go:3: no disk
ok    m/c                                              1 tests     0.00s
2 passed, 0 failed, 1 skipped
`,
		},
		{
			name: "a skip where none may be", in: skipping, noSkips: true, err: errSkipped,
			want: `SKIP  m/c TestC
          c_test.go:3: no disk
ok    m/c                                              1 tests     0.00s
0 passed, 0 failed, 1 skipped
`,
		},
		{
			name: "a package without tests is no skip", in: passing + noTestFiles, noSkips: true,
			want: `ok    m/a                                              2 tests     0.25s
2 passed, 0 failed, 0 skipped
`,
		},
		{
			name: "a command that succeeds is no test", in: clean + passing,
			want: `ok    lint                                             0 tests     1.50s
ok    m/a                                              2 tests     0.25s
2 passed, 0 failed, 0 skipped
`,
		},
		{
			name: "a command that fails counts, with its output", in: unclean + passing, err: errFailed,
			want: `      a.go:1: x is unused
FAIL  lint                                             1 tests     1.50s
ok    m/a                                              2 tests     0.25s
2 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "no tests at all", in: noTestFiles, err: errNoTests,
			want: "0 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "empty input", in: "", err: errNoTests,
			want: "0 passed, 0 failed, 0 skipped\n",
		},
		{
			name: "a build failure shows the compiler's words", in: notBuilding, err: errFailed,
			want: `      # m/e [m/e.test]
      e_test.go:5:1: undefined: x
      FAIL	m/e [build failed]
FAIL  m/e                                              1 tests     0.00s
0 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "a package that fails after its tests passed", in: dying, err: errFailed,
			want: `      leak: 3 goroutines
FAIL  m/f                                              2 tests     0.00s
1 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "a test that never ended", in: killed, err: errFailed,
			want: `FAIL  m/g TestG
      waiting
FAIL  m/g                                              1 tests     0.00s
0 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "a test that timed out", in: timingOut, err: errFailed,
			want: `FAIL  m/i TestI
      panic: test timed out after 3s
FAIL  m/i                                              1 tests     3.01s
0 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "a package that never began a test", in: killedEarly, err: errFailed,
			want: `FAIL  m/h                                              1 tests     0.00s
0 passed, 1 failed, 0 skipped
`,
		},
		{
			name: "other lines pass through", in: "vet: x.go:1: oh\n{\"a\":1}\n" + passing,
			want: `vet: x.go:1: oh
{"a":1}
ok    m/a                                              2 tests     0.25s
2 passed, 0 failed, 0 skipped
`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(strings.NewReader(tt.in), &out, tt.noSkips)
			if out.String() != tt.want {
				t.Errorf("printed:\n%s\nwant:\n%s", out.String(), tt.want)
			}
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
		})
	}
}

// Packages run side by side, so their lines interleave.
func TestSummaryInterleaved(t *testing.T) {
	a, b := strings.SplitAfter(passing, "\n"), strings.SplitAfter(failing, "\n")
	var in strings.Builder
	for i := range max(len(a), len(b)) {
		for _, lines := range [][]string{a, b} {
			if i < len(lines) {
				in.WriteString(lines[i])
			}
		}
	}
	var out bytes.Buffer
	if err := run(strings.NewReader(in.String()), &out, false); !errors.Is(err, errFailed) {
		t.Errorf("error %v, want %v", err, errFailed)
	}
	if !strings.HasSuffix(out.String(), "\n2 passed, 1 failed, 0 skipped\n") {
		t.Errorf("printed:\n%s", out.String())
	}
}

// A line that is too long ends the reading: the run cannot be called a success.
func TestLineTooLong(t *testing.T) {
	in := passing + strings.Repeat("x", maxLine+1)
	if err := run(strings.NewReader(in), new(bytes.Buffer), false); err == nil {
		t.Error("no error")
	}
}

type brokenPipe struct{}

var errPipe = errors.New("broken pipe")

func (brokenPipe) Write([]byte) (int, error) { return 0, errPipe }

func TestWriteFails(t *testing.T) {
	if err := run(strings.NewReader("text\n"), brokenPipe{}, false); !errors.Is(err, errPipe) {
		t.Errorf("error %v, want %v", err, errPipe)
	}
}
