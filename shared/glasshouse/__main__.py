from glasshouse.cli import main

raise SystemExit(main())
