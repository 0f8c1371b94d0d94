package cli

import "github.com/weir-ratelimit/weir/internal/descriptors/rulefile"

type schemaCmd struct{}

func (*schemaCmd) Help() string {
	return `Prints the JSON Schema of rule files, with which editors complete fields and mark errors. Editors with the YAML
language server find it by the first line of a rule file:

    # yaml-language-server: $schema=` + rulefile.SchemaURL + `

Exit codes: 0 printed, 2 the command line is wrong.

Example:

    weir schema >rules.schema.json`
}

// Run prints the schema.
func (*schemaCmd) Run(io streams) error {
	_, err := io.out.Write(rulefile.JSONSchema())
	return err
}
