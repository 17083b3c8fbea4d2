package main

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Streams as go test -json writes them, times left out.
const (
	aFails = `{"Action":"run","Package":"m/x","Test":"TestA"}
{"Action":"output","Package":"m/x","Test":"TestA","Output":"    x_test.go:7: got 1\n"}
{"Action":"fail","Package":"m/x","Test":"TestA","Elapsed":0}
`
	bPasses = `{"Action":"run","Package":"m/x","Test":"TestB"}
{"Action":"pass","Package":"m/x","Test":"TestB","Elapsed":0}
`
	bSkips = `{"Action":"skip","Package":"m/x","Test":"TestB","Elapsed":0}
`
	bHangs = `{"Action":"run","Package":"m/x","Test":"TestB"}
{"Action":"output","Package":"m/x","Test":"TestB","Output":"panic: test timed out after 3s\n"}
{"Action":"fail","Package":"m/x","Test":"TestB","Elapsed":3}
{"Action":"fail","Package":"m/x","Elapsed":3.006}
`
	bDies = `{"Action":"run","Package":"m/x","Test":"TestB"}
{"Action":"output","Package":"m/x","Test":"TestB","Output":"panic: elsewhere\n"}
{"Action":"fail","Package":"m/x","Elapsed":0.1}
`
	unbuilt = `{"ImportPath":"m/x [m/x.test]","Action":"build-output","Output":"x_test.go:5:1: undefined: x\n"}
{"ImportPath":"m/x [m/x.test]","Action":"build-fail"}
{"Action":"fail","Package":"m/x","Elapsed":0,"FailedBuild":"m/x [m/x.test]"}
`
)

func TestVerdicts(t *testing.T) {
	a, b := test{"m/x", "TestA"}, test{"m/x", "TestB"}
	for _, c := range []struct {
		output string
		tests  []test
		want   verdict
	}{
		{aFails, []test{a}, killed},
		{aFails + bPasses, []test{a}, killed},
		{aFails + bPasses, []test{a, b}, survived},
		{bPasses + aFails, []test{b, a}, survived},
		{aFails + bSkips, []test{a, b}, notEnded},
		{aFails, []test{a, b}, notEnded},
		{aFails, []test{{"m/y", "TestA"}}, notEnded},
		{aFails + bHangs, []test{a, b}, timedOut},
		{aFails + bDies, []test{a, b}, notEnded},
		{unbuilt, []test{a}, notBuilt},
		{"", []test{a}, notEnded},
	} {
		if got := readOutcome(c.output).judgeTests(c.tests); got != c.want {
			t.Errorf("%v, want %v, after\n%s", got, c.want, c.output)
		}
	}
}

func TestNotPassed(t *testing.T) {
	a, b, c := test{"m/x", "TestA"}, test{"m/x", "TestB"}, test{"m/x", "TestC"}
	got := readOutcome(aFails + bPasses).notPassed([]test{a, b, c})
	if !slices.Equal(got, []test{a, c}) {
		t.Error(got)
	}
}

// What the tests, the build and anybody else said is kept.
func TestOutput(t *testing.T) {
	got := readOutcome(aFails + unbuilt + "go: no module\n").output.String()
	if want := "    x_test.go:7: got 1\nx_test.go:5:1: undefined: x\ngo: no module\n"; got != want {
		t.Errorf("%q", got)
	}
}

func TestGoTestArgs(t *testing.T) {
	got := strings.Join(goTestArgs([]test{{"m/b", "TestB/R06"}, {"m/a", "TestA"}, {"m/b", "TestC"}}, "2", time.Minute), " ")
	if want := "test -json -count=1 -trimpath -vet=off -p=2 -timeout=1m0s -run=^TestB$/^R06$|^TestA$|^TestC$ m/a m/b"; got != want {
		t.Error(got)
	}
}

func TestReport(t *testing.T) {
	var text strings.Builder
	err := report(&text, []result{
		{mutant: mutant{name: "R06-a", requirement: 6, breaks: "it", tests: []test{{"m", "TestR06"}, {"m", "TestR06B"}}}, took: 1500 * time.Millisecond},
		{mutant: mutant{name: "R10-b", requirement: 10, breaks: "that", tests: []test{{"m", "TestR10"}}}, verdict: survived, detail: "ok\n"},
	})
	want := `R10-b: survived
ok
requirement  verdict   seconds  broken  its tests
R6           killed    1.5      it      TestR06
                                        TestR06B
R10          survived  0.0      that    TestR10
1 of 2 mutants killed
`
	if err != nil || text.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, text.String(), want)
	}
}
