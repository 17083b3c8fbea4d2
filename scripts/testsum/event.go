package main

import "encoding/json"

// event is one line of go test -json (go doc test2json, TestEvent).
type event struct {
	Action     string
	Package    string
	ImportPath string // instead of Package in the output of a build
	Test       string // empty where the event is about the package
	Output     string
	Elapsed    float64 // seconds
	// FailedBuild is set in the fail event of a package that did not build.
	FailedBuild string
}

// parseEvent returns false for a line that is not an event.
func parseEvent(line []byte) (event, bool) {
	var e event
	err := json.Unmarshal(line, &e)
	return e, err == nil && e.Action != ""
}
