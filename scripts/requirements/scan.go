package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strings"
)

// recovery lists the packages that recovery is made of; /... takes in those
// beneath.
var recovery = []string{
	"cmd/...", "hca/faults", "hca/guard", "link", "neigh", "qprecovery/...", "ud",
}

// self has strings that look like names of subtests and are none.
const self = "scripts/requirements"

// scan reads the Go files of the module whose root is fsys.
func scan(fsys fs.FS) (*findings, error) {
	var f findings
	err := fs.WalkDir(fsys, ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && ignored(file):
			return fs.SkipDir
		case d.IsDir() || path.Ext(file) != ".go":
			return nil
		}
		return f.read(fsys, file)
	})
	return &f, err
}

// ignored reports whether the go command looks past a directory, or this one does.
func ignored(dir string) bool {
	base := path.Base(dir)
	return dir == self || base == "testdata" || dir != "." && strings.ContainsAny(base[:1], "._")
}

func (f *findings) read(fsys fs.FS, file string) error {
	test := strings.HasSuffix(file, "_test.go")
	if !test && !ofRecovery(path.Dir(file)) {
		return nil
	}
	syntax, err := parse(fsys, file)
	if err != nil {
		return err
	}
	if test {
		return f.readTests(fsys, file, syntax)
	}
	return f.readComments(file, syntax)
}

func parse(fsys fs.FS, file string) (*ast.File, error) {
	text, err := fs.ReadFile(fsys, file)
	if err != nil {
		return nil, err
	}
	return parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments|parser.SkipObjectResolution)
}

func ofRecovery(dir string) bool {
	for _, pattern := range recovery {
		tree, isTree := strings.CutSuffix(pattern, "/...")
		if dir == tree || isTree && strings.HasPrefix(dir, tree+"/") {
			return true
		}
	}
	return false
}
